"""The stored simulated counters: `experiments/simulated/<gpu>.csv`, one row per kernel, and how they are made."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from experiments.accuracy.cases import Case
from experiments.accuracy.quantities import FIELDS, compared_values
from kernels_cupy.commented_csv import read_rows

__all__ = ["Kernel", "Stored", "read_stored", "simulate_case", "simulate_cases", "stored_path", "write_stored"]

SIMULATED = Path(__file__).parents[1] / "simulated"
"""One file per GPU."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A simulated kernel: its name, and its value of every compared field."""

    name: str
    values: Mapping[str, float]


Stored = dict[tuple[str, str], tuple[Kernel, ...]]
"""(suite, label) → kernels in launch order."""


def stored_path(gpu: str) -> Path:
    """Where the simulated counters of `gpu` are."""
    return SIMULATED / f"{gpu}.csv"


def simulate_case(case: Case, gpu: str = "h200", overrides: Sequence[str] = ()) -> tuple[Kernel, ...]:
    """Simulate one case.

    Args:
        gpu: preset or file.
        overrides: `section.key=value` changes of the GPU.
    """
    from gpusim.machine import simulate
    from gpusim.spec import load_gpu

    result = simulate(case.plan(), load_gpu(gpu, overrides), l2=case.l2)
    return tuple(Kernel(k.name, compared_values(k)) for k in result.kernels)


def simulate_cases(
    cases: Sequence[Case], gpu: str = "h200", overrides: Sequence[str] = (), processes: int = 1
) -> Iterator[tuple[Case, tuple[Kernel, ...]]]:
    """Each case with its kernels as it finishes, in up to `processes` processes."""
    if processes == 1:
        for case in cases:
            yield case, simulate_case(case, gpu, overrides)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(simulate_case, case, gpu, overrides): case for case in cases}
        for future in as_completed(futures):
            yield futures[future], future.result()


def read_stored(gpu: str = "h200", path: Path | None = None) -> Stored:
    """The stored counters; none where there is no file."""
    file = path or stored_path(gpu)
    if not file.is_file():
        return {}
    found: dict[tuple[str, str], list[Kernel]] = {}
    for row in read_rows(file):
        kernel = Kernel(row["kernel"], {field: float(row[field]) for field in FIELDS})
        found.setdefault((row["suite"], row["case"]), []).append(kernel)
    return {key: tuple(kernels) for key, kernels in found.items()}


def write_stored(stored: Stored, gpu: str = "h200", path: Path | None = None) -> None:
    """Replace the stored counters, sorted, so that a diff shows what moved."""
    file = path or stored_path(gpu)
    out = io.StringIO()
    out.write(f"# Simulated counters of {gpu}, one row per kernel, written by: python -m experiments.accuracy\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["suite", "case", "kernel", *FIELDS])
    for (suite, case), kernels in sorted(stored.items()):
        for kernel in kernels:
            writer.writerow([suite, case, kernel.name, *(f"{kernel.values[field]:.12g}" for field in FIELDS)])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(out.getvalue())
