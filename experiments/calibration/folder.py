"""A folder that `python -m kernels_cupy.calibrate` filled; files that are not there are files that say nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from experiments.measurements import CapacityRead, Step, capacity_reads, writeback_steps
from experiments.validation.data import SmRead, measured_curves, sm_reads
from experiments.validation.write_study import measured_steps
from gpusim.errors import UserError
from kernels_cupy.calibrate import BENCHMARKS
from kernels_cupy.commented_csv import read_facts, read_rows

__all__ = ["DEVICE", "Device", "Measurements", "Rate", "open_folder"]

DEVICE = "device.json"


@dataclass(frozen=True, slots=True)
class Device:
    """What the driver says of the card.

    Attributes:
        compute_capability: `9.0`.
        sm_count, l2_bytes, memory_bytes, shared_bytes_per_sm, shared_bytes_per_cta, registers_per_sm, threads_per_sm,
        ctas_per_sm: counts and sizes.
        memory_bus_bits: width of the memory bus.
        sm_clock_hz, memory_clock_hz: highest clocks; 0 where the driver does not say.
    """

    compute_capability: str
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_cta: int
    registers_per_sm: int
    threads_per_sm: int
    ctas_per_sm: int
    memory_bus_bits: int
    sm_clock_hz: float
    memory_clock_hz: float

    @property
    def capability(self) -> tuple[int, int]:
        """(9, 0) for 9.0."""
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Rate:
    """A row of `rates.csv`: work per cycle and SM of an instruction."""

    per_clk: float
    unit: str


@dataclass(frozen=True)
class Measurements:
    """The files of a folder, read when asked for; None, or nothing in it, where a file is not there."""

    folder: Path
    device: Device

    @property
    def missing(self) -> list[str]:
        """Files that the runner would make and that are not there."""
        return [b.output for b in BENCHMARKS if not (self.folder / b.output).is_file()]

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Provenance of the card: GPU, driver, CUDA, date."""
        return {key: str(value) for key, value in (self.json(DEVICE) or {}).items()}

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON file."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.is_file() else None

    def facts_of(self, name: str) -> Mapping[str, str]:
        """The comments of a CSV file."""
        path = self.folder / name
        return read_facts(path) if path.is_file() else {}

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file."""
        path = self.folder / name
        return list(read_rows(path)) if path.is_file() else []

    @cached_property
    def curves(self) -> Mapping[str, Mapping[float, float]]:
        """Curves of bandwidth and latency by name."""
        return measured_curves(self.folder)

    @cached_property
    def sm_reads(self) -> list[SmRead]:
        """Chosen SMs that read from the L2."""
        return sm_reads(self.folder)

    @cached_property
    def capacity(self) -> list[CapacityRead]:
        """Counters of reads and writes by size."""
        return capacity_reads(self.folder)

    @cached_property
    def lockstep(self) -> list[Step]:
        """Counters of CTAs that read the same tiles."""
        return [step for step in writeback_steps(self.folder) if step.step.startswith("lockstep")]

    @cached_property
    def written(self) -> Mapping[str, Mapping[float, Step]]:
        """Counters of written data, by step and size in MiB."""
        return measured_steps(self.folder)

    @cached_property
    def units(self) -> Mapping[str, float]:
        """Instances and clocks that the GPU counts."""
        return {row["quantity"]: float(row["value"]) for row in self.rows("units.csv")}

    @cached_property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        """(instruction, precision) → rate."""
        return {
            (row["instruction"], row["precision"]): Rate(float(row["per_clk_per_sm"]), row["unit"])
            for row in self.rows("rates.csv")
            if row["per_clk_per_sm"]
        }

    @cached_property
    def sustained_clock_hz(self) -> float | None:
        """SM clock under tensor load."""
        clocks = [float(r["sm_clock_ghz"]) for r in self.rows("rates.csv") if r["instruction"].startswith("sustained")]
        return 1e9 * median(clocks) if clocks else None

    @property
    def counted(self) -> bool:
        """Whether any hardware counter was read."""
        return bool(self.units or self.capacity or self.lockstep)


def open_folder(folder: Path) -> Measurements:
    """The measurements in `folder`.

    Raises:
        UserError: no such folder, no `device.json` in it, or a file in it that cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"--measurements {folder} is not a folder")
    path = folder / DEVICE
    if not path.is_file():
        raise UserError(
            f"--measurements {folder} has no {DEVICE}; python -m kernels_cupy.calibrate -o {folder} makes it on a GPU"
        )
    try:
        found = Measurements(folder, _device(json.loads(path.read_text())))
        for name in ("capacity", "lockstep", "written", "units", "rates", "curves", "sm_reads", "sustained_clock_hz"):
            getattr(found, name)
        for benchmark in BENCHMARKS:
            if benchmark.output.endswith(".json"):
                found.json(benchmark.output)
    except (ValueError, KeyError, TypeError, OSError, csv.Error) as error:
        raise UserError(f"--measurements {folder} has a file that cannot be read: {_said(error)}") from None
    return found


def _device(values: Mapping[str, Any]) -> Device:
    whole = {
        name: int(values[name])
        for name in Device.__annotations__
        if name not in ("compute_capability", "sm_clock_hz", "memory_clock_hz")
    }
    return Device(
        compute_capability=str(values["compute_capability"]),
        sm_clock_hz=1e3 * float(values.get("sm_clock_khz", 0)),
        memory_clock_hz=1e3 * float(values.get("memory_clock_khz", 0)),
        **whole,
    )


def _said(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
