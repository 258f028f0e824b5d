"""What crosses between the L2 partitions: time that SMs of one or of both take to read memory and to write."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.micro.fabric import read_and_write
from experiments.validation.curve import HOLD_OUT, Curve, Point
from experiments.validation.study import Advance, Study, run, seconds, stepped
from gpusim.spec import GpuSpec
from kernels_cupy.commented_csv import read_rows

__all__ = ["fabric_studies"]

FILE = "fabric.csv"
_WHERE = {"one": "one partition", "other": "the other", "both": "both"}


def fabric_studies(folder: Path) -> list[Study]:
    """The study of a folder that has `fabric.csv` (`kernels_cupy.microbench.fabric`)."""
    return [Study(("fabric.time",), partial(_simulate, folder))] if (folder / FILE).exists() else []


def _simulate(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    sms = {"": [], "both": list(range(gpu.sm.count))}
    for partition, name in enumerate(("one", "other")):
        sms[name] = [sm for sm, own in enumerate(gpu.sm.partition_of_sm) if own == partition]
    rows = list(read_rows(folder / FILE))
    points = []
    for number, row in enumerate(stepped(rows, advance)):
        sizes = int(row["read_mib"]), int(row["written_mib"])
        pattern = read_and_write(sms[row["readers"]], sms[row["writers"]], *sizes, gpu.sm.cta_order)
        time_us = 1e6 * seconds(run(pattern, gpu)[-1], gpu)
        parts = [
            f"{what} by {_WHERE[row[who]]}" for what, who in (("read", "readers"), ("written", "writers")) if row[who]
        ]
        measured_us = max(float(row["read_us"]), float(row["write_us"]))
        points.append(Point(number, ", ".join(parts), measured_us, time_us, number % HOLD_OUT == HOLD_OUT - 1))
    shape = Curve(
        "fabric.time",
        f"Time to read {rows[0]['read_mib']} MiB from DRAM and to write half as much, by partition of the SMs",
        "SMs of",
        "",
        "time",
        "us",
        "relative",
        0.15,
        (),
    )
    return [replace(shape, points=tuple(points))]
