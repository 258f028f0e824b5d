"""What is compared, in which unit, how errors are taken, and how large they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusim.result import KernelResult

__all__ = ["FIELDS", "QUANTITIES", "SUITES", "TARGETS", "Quantity", "Target", "compared_values"]

MB = 1e6
LAUNCH_FABRIC_BYTES = 12432 * 32
"""What the counter of the fabric shows of a launch that crosses it with no data: the same for every kernel that reads
what its own partition holds (experiments/measured/h200/l2_writeback_and_merging.csv, `read back same SM`)."""
SUITES = {"torch": "PyTorch's kernels", "own": "kernels of this repository"}
"""Kernels that were measured, by the name of their suite."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A compared field.

    Attributes:
        field: name in the JSON contract.
        title: for people.
        unit: of values in tables.
        scale: divisor from the field's unit to `unit`.
        least: measured values below this are too small for a percentage; their difference is judged instead.
        in_points: a share, whose error is the difference in percentage points.
    """

    field: str
    title: str
    unit: str
    scale: float
    least: float = 0.0
    in_points: bool = False

    @property
    def error_unit(self) -> str:
        return "points" if self.in_points else "%"

    def is_small(self, measured: float) -> bool:
        """Whether the measured value is too small for a percentage."""
        return not self.in_points and (measured <= 0 or measured < self.least)

    def error(self, measured: float, simulated: float) -> float | None:
        """Simulated minus measured, in percent of measured or in points; None where it says nothing."""
        if math.isnan(measured) or math.isnan(simulated) or self.is_small(measured):
            return None
        return (simulated - measured) * 100 if self.in_points else (simulated / measured - 1) * 100

    def difference(self, measured: float, simulated: float) -> float | None:
        """Simulated minus measured in `unit`, of a value too small for a percentage; None for others."""
        return (simulated - measured) / self.scale if self.is_small(measured) else None


@dataclass(frozen=True, slots=True)
class Target:
    """How large errors of a quantity may be, in its `error_unit`; `largest` None where only the mean is asked for."""

    mean: float
    largest: float | None = None


_DRAM_LEAST = 4 * MB
SMALL_LIMIT = 1.0
"""DRAM bytes of kernels below `least` may be off by this many MB."""

QUANTITIES = (
    Quantity("dram_read_bytes", "DRAM read", "MB", MB, _DRAM_LEAST),
    Quantity("dram_write_bytes", "DRAM write", "MB", MB, _DRAM_LEAST),
    Quantity("l2_read_bytes", "L2 read", "MB", MB),
    Quantity("l2_write_bytes", "L2 write", "MB", MB),
    Quantity("l2_hit_rate", "L2 hit rate", "%", 0.01, in_points=True),
    Quantity("fabric_bytes", "L2 fabric", "MB", MB, MB),
    Quantity("sm_read_bytes", "SM read", "MB", MB),
    Quantity("sm_write_bytes", "SM write", "MB", MB),
    Quantity("cycles", "cycles", "thousands", 1e3),
)
FIELDS = tuple(q.field for q in QUANTITIES)

TARGETS: Mapping[str, Mapping[str, Target]] = {
    "own": {
        "dram_read_bytes": Target(3),
        "dram_write_bytes": Target(3),
        "l2_read_bytes": Target(3),
        "l2_write_bytes": Target(3),
        "l2_hit_rate": Target(2),
        "fabric_bytes": Target(5),
        "sm_read_bytes": Target(1),
        "sm_write_bytes": Target(1),
        "cycles": Target(7, 15),
    },
    "torch": {
        "dram_read_bytes": Target(5),
        "dram_write_bytes": Target(5),
        "l2_read_bytes": Target(5),
        "l2_hit_rate": Target(3),
        "cycles": Target(10),
    },
}
"""Suite → field → what is aimed at; fields without an entry are reported only."""


def compared_values(kernel: KernelResult) -> dict[str, float]:
    """The fields of a simulated kernel as Nsight Compute counts them.

    L2 writes are without reductions (`…_op_red`), and every launch crosses the fabric (`LAUNCH_FABRIC_BYTES`).
    """
    from gpusim.counters import C
    from gpusim.memory.sizes import SECTOR_BYTES

    values = {field: float(getattr(kernel, field)) for field in FIELDS}
    values["l2_write_bytes"] -= float(kernel.counts[:, C.L2_REDUCE].sum()) * SECTOR_BYTES
    values["fabric_bytes"] += LAUNCH_FABRIC_BYTES
    return values
