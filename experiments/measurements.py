"""The committed hardware measurements, as typed rows with the field names of simulated kernels.

    for call in attention_calls("h200", "warm"):
        print(call.label, [k.dram_read_bytes for k in call.kernels])

Where the numbers come from is said in `experiments/measured/<gpu>/README.md`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from kernels_cupy.commented_csv import read_rows
from traces.problem import AttentionProblem

__all__ = [
    "SIMULATED_L2",
    "CapacityRead",
    "Counters",
    "L2State",
    "MeasuredCall",
    "MeasuredKernel",
    "Step",
    "attention_calls",
    "capacity_reads",
    "cta_to_sm_order",
    "folder_of",
    "has_attention_calls",
    "parse_config",
    "sdpa_speed",
    "writeback_steps",
]

MEASURED = Path(__file__).parent / "measured"
"""One folder per GPU."""

SECTOR_BYTES = 32

L2State = Literal["warm", "cold"]
"""How the L2 was before the measured kernels: `warm`, the same call ran before; `cold`, flushed before every kernel."""
SIMULATED_L2 = {"cold": "flush", "warm": "warm"}
"""The same → the simulator's name of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the hardware counted for one kernel; bytes summed over the GPU. NaN: not measured.

    Attributes:
        time_us: duration, microseconds, at whatever clock the GPU ran.
        cycles: SM cycles from launch to end, launch overhead included.
        sm_active_cycles: cycles with a resident CTA, mean over SMs.
        l2_cycles: the same duration in L2 cycles.
        dram_read_bytes, dram_write_bytes: moved by HBM.
        l2_read_bytes, l2_write_bytes: requested from the L2 by the SMs, after merging.
        l2_hit_rate: hits / (hits + misses) of those requests, 0 to 1; writes count as hits.
        fabric_bytes: requests that crossed from one L2 partition to the other.
        sm_read_bytes, sm_write_bytes: received and sent at the SM ports.
    """

    time_us: float
    cycles: float
    sm_active_cycles: float
    l2_cycles: float
    dram_read_bytes: float
    dram_write_bytes: float
    l2_read_bytes: float
    l2_write_bytes: float
    l2_hit_rate: float
    fabric_bytes: float
    sm_read_bytes: float
    sm_write_bytes: float

    @property
    def dram_bytes(self) -> float:
        """HBM traffic, both directions."""
        return self.dram_read_bytes + self.dram_write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel(Counters):
    """One kernel launch of attention in PyTorch.

    Attributes:
        algorithm: PyTorch path as in the CSV (`naive`, `cudnn_causal`, ...).
        config: shape as in the CSV (`B1_H32_N4096_d128`).
        name: kernel name.
        grid, block: launch dimensions (x, y, z).
        dynamic_shared_bytes: dynamic shared memory per CTA.
    """

    algorithm: str
    config: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return math.prod(self.block)


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """The kernels of one call of a PyTorch path, in launch order.

    Attributes:
        algorithm, config: as in the CSV.
        l2: state of the L2 before.
        problem: the shape as an attention problem.
        kernels: the launches.
    """

    algorithm: str
    config: str
    l2: L2State
    problem: AttentionProblem
    kernels: tuple[MeasuredKernel, ...]

    @property
    def label(self) -> str:
        """Unique, readable name of the call."""
        return f"{self.algorithm} {self.config} {self.l2}"

    @property
    def dram_bytes(self) -> float:
        """HBM traffic of all kernels, both directions."""
        return sum(k.dram_bytes for k in self.kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRead(Counters):
    """One launch of the capacity benchmark: `pattern` over a buffer of `mib` MiB (no SM-port counters)."""

    pattern: str
    mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Counters):
    """One launch of the write-back and merging benchmark, named by `step`."""

    step: str


def attention_calls(gpu: str, l2: L2State) -> list[MeasuredCall]:
    """Every measured attention call, in file order."""
    kernels = [_kernel(row) for row in _rows(gpu, f"torch_attention_{l2}.csv")]
    calls = []
    for (algorithm, config), group in groupby(kernels, key=lambda k: (k.algorithm, k.config)):
        problem = parse_config(config, causal=algorithm.endswith("_causal"))
        calls.append(MeasuredCall(algorithm, config, l2, problem, tuple(group)))
    return calls


def has_attention_calls(gpu: str) -> bool:
    """Whether attention in PyTorch was measured on the GPU."""
    return (MEASURED / gpu / "torch_attention_warm.csv").is_file()


def folder_of(gpu: str) -> Path:
    """Where the measurements of a GPU are committed (the folder need not exist)."""
    return MEASURED / gpu


def capacity_reads(folder: Path) -> list[CapacityRead]:
    """The L2 capacity benchmark in a folder of measurements, in file order; nothing where it was not run."""
    path = folder / "l2_capacity_reads.csv"
    rows = read_rows(path) if path.is_file() else ()
    return [CapacityRead(pattern=row["pattern"], mib=float(row["mib"]), **_counters(row)) for row in rows]


def writeback_steps(folder: Path) -> list[Step]:
    """The write-back and merging benchmark in a folder of measurements, in file order (all in one L2); or nothing."""
    path = folder / "l2_writeback_and_merging.csv"
    rows = read_rows(path) if path.is_file() else ()
    return [Step(step=row["step"], **_counters(row)) for row in rows]


def cta_to_sm_order(gpu: str) -> dict[str, list[int]]:
    """The SM of each CTA in launch order, by launch (`grid132_threads128`, ...)."""
    orders: dict[str, list[int]] = _json(gpu, "cta_to_sm_order.json")
    return orders


def sdpa_speed(gpu: str) -> dict[str, list[dict[str, Any]]]:
    """Timed PyTorch attention: `prefill` and `decode` rows as in the file."""
    speeds: dict[str, list[dict[str, Any]]] = _json(gpu, "torch_sdpa_speed.json")
    return speeds


def parse_config(config: str, causal: bool = False) -> AttentionProblem:
    """The problem of a `config` cell: `B1_H32_N4096_d128`, or `B1_H32_Hkv8_M4096_d128` (one query row, M keys).

    Raises:
        ValueError: not such a text.
    """
    match = re.fullmatch(r"B(\d+)_H(\d+)(?:_Hkv(\d+))?_([NM])(\d+)_d(\d+)", config)
    if match is None:
        raise ValueError(f"config {config!r} is not like B1_H32_N4096_d128 or B1_H32_Hkv8_M4096_d128")
    batch, heads, kv_heads, kind, length, dim = match.groups()
    return AttentionProblem(
        batch=int(batch),
        heads=int(heads),
        kv_heads=int(kv_heads or 0),
        seq=1 if kind == "M" else int(length),
        seq_kv=int(length),
        dim=int(dim),
        causal=causal,
    )


def _rows(gpu: str, name: str) -> Iterator[dict[str, str]]:
    with (MEASURED / gpu / name).open(newline="") as file:
        yield from csv.DictReader(file)


def _json(gpu: str, name: str) -> Any:
    return json.loads((MEASURED / gpu / name).read_text())


def _kernel(row: Mapping[str, str]) -> MeasuredKernel:
    return MeasuredKernel(
        algorithm=row["algorithm"],
        config=row["config"],
        name=row["kernel"],
        grid=_triple(row["grid"]),
        block=_triple(row["block"]),
        dynamic_shared_bytes=int(row["dyn_smem"].replace(",", "")),
        **_counters(row),
    )


def _triple(text: str) -> tuple[int, int, int]:
    x, y, z = (int(part) for part in text.strip("()").split(","))
    return x, y, z


def _counters(row: Mapping[str, str]) -> dict[str, float]:
    def number(column: str) -> float:
        return float(row[column]) if row.get(column) else math.nan

    hits, misses = number("l2_tex_hit_sectors"), number("l2_tex_miss_sectors")
    return {
        "time_us": number("time_ns") / 1e3,
        "cycles": number("sm_cycles_elapsed"),
        "sm_active_cycles": number("sm_cycles_active_avg"),
        "l2_cycles": number("l2_cycles_elapsed"),
        "dram_read_bytes": number("dram_read_bytes"),
        "dram_write_bytes": number("dram_write_bytes"),
        "l2_read_bytes": number("l2_tex_read_sectors") * SECTOR_BYTES,
        "l2_write_bytes": number("l2_tex_write_sectors") * SECTOR_BYTES,
        "l2_hit_rate": hits / (hits + misses) if hits + misses else math.nan,
        "fabric_bytes": number("l2_fabric_sectors") * SECTOR_BYTES,
        "sm_read_bytes": number("sm_read_bytes"),
        "sm_write_bytes": number("sm_write_bytes"),
    }
