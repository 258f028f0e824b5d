"""The measured curves as {x: value}, by name."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from experiments.measurements import MEASURED

__all__ = ["PublicCurve", "measured_curves", "public_curves"]


@dataclass(frozen=True, slots=True)
class PublicCurve:
    """A published curve of one card.

    Attributes:
        values: value by x, in the units of the CSV file.
        clock_hz: SM clock that the card ran at.
    """

    values: dict[float, float]
    clock_hz: float


def measured_curves(gpu: str) -> dict[str, dict[float, float]]:
    """Curves of `bandwidth_latency.csv` by name: TB/s or SM cycles against MiB, SMs or threads."""
    curves: dict[str, dict[float, float]] = {}
    with (MEASURED / gpu / "bandwidth_latency.csv").open(newline="") as file:
        for row in csv.DictReader(file):
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
