"""Simulated against measured kernels: errors, tables and the accuracy target."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TextIO

from experiments.accuracy.quantities import MB, Quantity

__all__ = ["QUANTITIES", "KernelRow", "Verdict", "judge", "summary", "table", "write_csv"]


QUANTITIES = (
    Quantity("dram_read_bytes", "DRAM read", "MB", MB, MB),
    Quantity("dram_write_bytes", "DRAM write", "MB", MB, MB),
    Quantity("l2_read_bytes", "L2 read", "MB", MB, MB),
    Quantity("l2_hit_rate", "L2 hit", "%", 0.01, in_points=True),
    Quantity("fabric_bytes", "fabric", "MB", MB, MB),
    Quantity("sm_read_bytes", "SM read", "MB", MB, MB),
    Quantity("cycles", "kcycles", "", 1e3),
)

TARGET_DRAM_FLOOR_BYTES = 20 * MB
TARGET_DRAM_PERCENT = 10.0
TARGET_HIT_POINTS = 5.0
TARGET_CYCLES_PERCENT = 20.0


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel, measured and simulated.

    Attributes:
        call: label of the measured call.
        algorithm: measured path (`naive`, `cudnn`, `cudnn_causal`, `naive_bwd`, `flash_bwd`).
        kernel: simulated kernel name.
        measured, simulated: values of `QUANTITIES` by field, in the fields' units.
    """

    call: str
    algorithm: str
    kernel: str
    measured: dict[str, float]
    simulated: dict[str, float]

    def error(self, quantity: Quantity) -> float | None:
        """Simulated minus measured, percent of measured (or points); None where the measured value is too small."""
        return quantity.error(self.measured[quantity.field], self.simulated[quantity.field])

    def dram_bytes(self) -> tuple[float, float]:
        """(measured, simulated) HBM traffic, both directions."""
        measured, simulated = self.measured, self.simulated
        return (
            measured["dram_read_bytes"] + measured["dram_write_bytes"],
            simulated["dram_read_bytes"] + simulated["dram_write_bytes"],
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kernel meets the accuracy target; `dram` is None where it moved too little for a percentage."""

    dram: bool | None
    hit_rate: bool
    cycles: bool


def judge(row: KernelRow) -> Verdict:
    """HBM bytes within 10 % (above 20 MB), L2 hit rate within 5 points, cycles within 20 %."""
    measured, simulated = row.dram_bytes()
    dram = None
    if measured > TARGET_DRAM_FLOOR_BYTES:
        dram = abs(simulated / measured - 1) * 100 <= TARGET_DRAM_PERCENT
    hit = abs(row.simulated["l2_hit_rate"] - row.measured["l2_hit_rate"]) * 100 <= TARGET_HIT_POINTS
    cycles = abs(row.simulated["cycles"] / row.measured["cycles"] - 1) * 100 <= TARGET_CYCLES_PERCENT
    return Verdict(dram, hit, cycles)


def table(rows: Sequence[KernelRow]) -> str:
    """One line per kernel: measured, simulated and error of every quantity; a line of HBM totals per call."""
    width = max((len(_name(r)) for r in rows), default=10)
    lines = [
        " " * width + "".join(f" |{_heading(q):^24}" for q in QUANTITIES) + " | target",
        " " * width + " |   measured    sim.  error" * len(QUANTITIES) + " |",
    ]
    for call in dict.fromkeys(r.call for r in rows):
        kernels = [r for r in rows if r.call == call]
        lines += [f"{_name(r):{width}}" + "".join(_cell(r, q) for q in QUANTITIES) + f" | {_marks(r)}" for r in kernels]
        if len(kernels) > 1:
            measured, simulated = (sum(part) for part in zip(*(r.dram_bytes() for r in kernels), strict=True))
            change = (simulated / measured - 1) * 100
            lines.append(
                f"{'':{width}} | HBM total {measured / MB:.1f} MB measured, {simulated / MB:.1f} MB simulated, "
                f"{change:+.1f} %"
            )
    return "\n".join(lines)


def _heading(quantity: Quantity) -> str:
    return f"{quantity.title} {quantity.unit}".rstrip()


def _name(row: KernelRow) -> str:
    return f"{row.call} {row.kernel}"


def _cell(row: KernelRow, quantity: Quantity) -> str:
    error = row.error(quantity)
    text = "-" if error is None else f"{error:+.1f}"
    values = (row.measured[quantity.field] / quantity.scale, row.simulated[quantity.field] / quantity.scale)
    return f" |{values[0]:9.1f}{values[1]:9.1f}{text:>7}"


def _marks(row: KernelRow) -> str:
    verdict = judge(row)
    failed = [
        name
        for name, ok in (("dram", verdict.dram), ("hit", verdict.hit_rate), ("cycles", verdict.cycles))
        if ok is False
    ]
    return "misses " + " ".join(failed) if failed else "met"


def summary(rows: Sequence[KernelRow]) -> str:
    """Mean absolute errors per path and kernel, and how many kernels meet the target."""
    groups = {name: [r for r in rows if r.algorithm == name] for name in dict.fromkeys(r.algorithm for r in rows)}
    for path, kernel in dict.fromkeys((r.algorithm, r.kernel) for r in rows):
        groups[f"{path} {kernel}"] = [r for r in rows if (r.algorithm, r.kernel) == (path, kernel)]
    lines = ["mean absolute error (%; L2 hit in points)"]
    for name, members in groups.items():
        parts = [f"{q.title} {_mean_error(members, q)}" for q in QUANTITIES]
        lines.append(f"  {name:28} {'  '.join(parts)}")
    verdicts = [judge(r) for r in rows]
    lines.append(
        f"target: HBM bytes within {TARGET_DRAM_PERCENT:g} % above {TARGET_DRAM_FLOOR_BYTES / MB:g} MB "
        f"{_count(v.dram for v in verdicts)}, L2 hit rate within {TARGET_HIT_POINTS:g} points "
        f"{_count(v.hit_rate for v in verdicts)}, cycles within {TARGET_CYCLES_PERCENT:g} % "
        f"{_count(v.cycles for v in verdicts)} of the kernels"
    )
    return "\n".join(lines)


def _mean_error(rows: Iterable[KernelRow], quantity: Quantity) -> str:
    errors = [abs(e) for r in rows if (e := r.error(quantity)) is not None]
    return f"{fmean(errors):.1f}" if errors else "-"


def _count(marks: Iterable[bool | None]) -> str:
    judged = [mark for mark in marks if mark is not None]
    return f"{sum(judged)}/{len(judged)}"


def write_csv(rows: Sequence[KernelRow], file: TextIO) -> None:
    """One line per kernel: measured_X, simulated_X and error_X (percent or points) of every quantity."""
    writer = csv.writer(file)
    kinds = [f"{kind}_{q.field}" for q in QUANTITIES for kind in ("measured", "simulated", "error")]
    writer.writerow(["call", "algorithm", "kernel", *kinds])
    for row in rows:
        values: list[object] = []
        for q in QUANTITIES:
            values += [row.measured[q.field], row.simulated[q.field], row.error(q)]
        writer.writerow([row.call, row.algorithm, row.kernel, *values])


def save_csv(rows: Sequence[KernelRow], path: Path) -> None:
    """`write_csv` to a file."""
    with path.open("w", newline="") as file:
        write_csv(rows, file)
