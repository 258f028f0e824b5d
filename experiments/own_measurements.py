"""Measurements of this project's own kernels: `experiments/measured/<gpu>/own_kernels.csv`, as typed runs.

    for run in own_runs("h200"):
        print(run.algorithm, run.l2, [k["dram_read_bytes"] for k in run.kernels])

The file is tidy CSV: one row per kernel launch, in launch order, the launches of a run next to each other. Lines that
start with `#` come first and say where the numbers are from, one `# key: value` each (`PROVENANCE`).

- `algorithm`: registry name.
- `problem`, `schedule`: JSON objects, as in the JSON contract; every schedule key.
- `l2`: `cold`, the L2 was empty before *every kernel*, as Nsight Compute makes it; `warm`, the same run came before.
- `kernel`: name of the launch, as simulated.
- `time_us`: duration of the kernel.
- `FIELDS`: what Nsight Compute counted, under the names of the JSON contract.
- `held_out`: 1, no figure of the simulator may be fitted to the run; 0, it may.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from experiments.measurements import MEASURED, SIMULATED_L2
from kernels_cupy.commented_csv import read_facts, read_rows
from traces.problem import AttentionProblem

__all__ = ["COLUMNS", "FIELDS", "PROVENANCE", "SIMULATED_L2", "OwnRun", "own_path", "own_provenance", "own_runs"]

FIELDS = (
    "cycles",
    "dram_read_bytes",
    "dram_write_bytes",
    "l2_read_bytes",
    "l2_write_bytes",
    "l2_hit_rate",
    "fabric_bytes",
    "sm_read_bytes",
    "sm_write_bytes",
)
"""Counted per launch; bytes are sums over the GPU, the hit rate is 0 to 1. An empty cell was not counted."""

COLUMNS = ("algorithm", "problem", "schedule", "l2", "kernel", "time_us", *FIELDS, "held_out")
PROVENANCE = ("gpu", "driver", "cuda", "sm_clock", "memory_clock", "ncu", "command", "date", "source_sha256")


@dataclass(frozen=True, slots=True)
class OwnRun:
    """The launches of one run of an algorithm's kernels.

    Attributes:
        algorithm: registry name.
        problem: what was computed.
        schedule: every schedule key of the plan that ran.
        l2: the simulator's name of the state of the L2, a value of `SIMULATED_L2`.
        kernels: per launch, in order, `name`, `time_us` and `FIELDS` (NaN: not counted).
        held_out: not to be used for fitting.
    """

    algorithm: str
    problem: AttentionProblem
    schedule: Mapping[str, Any]
    l2: str
    kernels: tuple[Mapping[str, Any], ...]
    held_out: bool


def own_path(gpu: str) -> Path:
    """Where the measurements of `gpu` are, or would be."""
    return MEASURED / gpu / "own_kernels.csv"


def own_runs(gpu: str, path: Path | None = None) -> list[OwnRun]:
    """Every run in the file of `gpu` (or in `path`), in file order; none where there is no file.

    Raises:
        ValueError: a column is missing, or a cell does not hold what it should.
    """
    file = path or own_path(gpu)
    if not file.is_file():
        return []
    rows = read_rows(file)
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"{file.name} has no column {', '.join(missing)}")
    return [run for _, group in groupby(rows, key=_key) for run in _runs(list(group))]


def own_provenance(gpu: str, path: Path | None = None) -> dict[str, str]:
    """The `# key: value` lines at the top of the file, by key; empty where there is no file."""
    file = path or own_path(gpu)
    return read_facts(file) if file.is_file() else {}


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("algorithm", "problem", "schedule", "l2", "held_out"))


def _runs(rows: list[dict[str, str]]) -> Iterator[OwnRun]:
    """The runs of equal neighbours: a new one begins where the first kernel's name comes again."""
    starts = [i for i, row in enumerate(rows) if row["kernel"] == rows[0]["kernel"]]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield _run(rows[start:end])


def _run(rows: list[dict[str, str]]) -> OwnRun:
    first = rows[0]
    if first["l2"] not in SIMULATED_L2:
        raise ValueError(f"column l2 holds {first['l2']!r}, not {' or '.join(SIMULATED_L2)}")
    if first["held_out"] not in ("0", "1"):
        raise ValueError(f"column held_out holds {first['held_out']!r}, not 0 or 1")
    return OwnRun(
        algorithm=first["algorithm"],
        problem=AttentionProblem.from_dict(json.loads(first["problem"])),
        schedule=json.loads(first["schedule"]),
        l2=SIMULATED_L2[first["l2"]],
        kernels=tuple(_kernel(row) for row in rows),
        held_out=first["held_out"] == "1",
    )


def _kernel(row: Mapping[str, str]) -> dict[str, Any]:
    numbers = {name: float(row[name]) if row[name] else math.nan for name in ("time_us", *FIELDS)}
    return {"name": row["kernel"], **numbers}
