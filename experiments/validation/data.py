"""The measured curves as {x: value}, by name."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from experiments.measurements import MEASURED
from kernels_cupy.commented_csv import read_rows

__all__ = ["CURVE_FILES", "PublicCurve", "SmRead", "measured_curves", "public_curves", "sm_reads"]


CURVE_FILES = ("bandwidth_latency.csv", "streams.csv", "latency.csv")
"""Files of curves, where a folder has them."""


@dataclass(frozen=True, slots=True)
class PublicCurve:
    """A published curve of one card.

    Attributes:
        values: value by x, in the units of the CSV file.
        clock_hz: SM clock that the card ran at.
    """

    values: dict[float, float]
    clock_hz: float


@dataclass(frozen=True, slots=True)
class SmRead:
    """A launch of `kernels_cupy.microbench.sm_bandwidth`: chosen SMs read from the L2.

    Attributes:
        which: how the SMs were chosen (`in order`: one after another in CTA order; `spread`: over all GPCs; …).
        sms, ctas_per_sm, threads: SMs that read, CTAs on each, threads of a CTA.
        depth: loads of 16 bytes in flight per thread.
        bytes_per_clk: all SMs together, at the pace of the slowest CTA.
    """

    which: str
    sms: int
    ctas_per_sm: int
    threads: int
    depth: int
    bytes_per_clk: float

    @property
    def inflight_kib(self) -> float:
        """KiB that an SM may have in flight."""
        return self.ctas_per_sm * self.threads * self.depth * 16 / 1024


def sm_reads(folder: Path) -> list[SmRead]:
    """Every launch of `sm_bandwidth.csv` in a folder of measurements, in file order; nothing where it was not run."""
    path = folder / "sm_bandwidth.csv"
    return [
        SmRead(
            which=row["set"],
            sms=int(row["sms"]),
            ctas_per_sm=int(row["ctas_per_sm"]),
            threads=int(row["threads"]),
            depth=int(row["depth"]),
            bytes_per_clk=float(row["bytes_per_clk_slowest"]),
        )
        for row in (read_rows(path) if path.is_file() else ())
    ]


def measured_curves(folder: Path) -> dict[str, dict[float, float]]:
    """Curves of `CURVE_FILES` in a folder of measurements, by name: TB/s or SM cycles against MiB, SMs or threads."""
    curves: dict[str, dict[float, float]] = {}
    for path in (folder / name for name in CURVE_FILES):
        for row in read_rows(path) if path.is_file() else ():
            curves.setdefault(row["curve"], {})[float(row["x"])] = float(row["value"])
    return curves


def public_curves(gpu: str) -> dict[str, PublicCurve]:
    """Published curves of the card `gpu` by name: GB/s or SM cycles against kB (1024 bytes) or threads."""
    curves: dict[str, PublicCurve] = {}
    with (MEASURED / "public" / "gpu_benches.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu:
                clock = float(row["sm_clock_mhz"]) * 1e6
                found = curves.setdefault(row["curve"], PublicCurve({}, clock))
                found.values[float(row["x"])] = float(row["value"])
    return curves
