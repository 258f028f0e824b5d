"""Which studies there are for which GPU."""

from __future__ import annotations

from collections.abc import Callable

from experiments.validation.capacity_study import READ_ALL, READS
from experiments.validation.curve import Curve
from experiments.validation.public_study import public_studies
from experiments.validation.speed_study import L2_READS, LATENCY, SMS, STREAMS
from experiments.validation.study import Study, chosen
from experiments.validation.write_study import MERGING, WRITEBACK
from gpusim.errors import UserError
from gpusim.spec import GpuSpec

__all__ = ["CARDS", "run_suite", "studies_for"]

MEASURED = (READS, READ_ALL, WRITEBACK, MERGING, LATENCY, L2_READS, SMS, STREAMS)
CARDS = {"h200": "", "v100-sxm2": "v100", "a100-80gb-sxm": "a100", "h100-pcie": "h100-pcie"}
"""GPU preset → name of its published curves; the H200's were measured for this project."""


def studies_for(gpu: GpuSpec, only: str = "") -> list[Study]:
    """The studies of a GPU that give a curve whose name holds `only`.

    Raises:
        UserError: nothing is measured for the GPU, or no curve has such a name.
    """
    if gpu.name not in CARDS:
        raise UserError(f"no measurements of {gpu.name} are at hand, only of {', '.join(CARDS)}")
    studies = public_studies(CARDS[gpu.name]) if CARDS[gpu.name] else list(MEASURED)
    found = chosen(studies, only)
    if not found:
        names = ", ".join(name for study in studies for name in study.curves)
        raise UserError(f"--only {only}: no curve of {gpu.name} has such a name, they are {names}")
    return found


def run_suite(gpu: GpuSpec, only: str, advance: Callable[[float], None]) -> list[Curve]:
    """Simulate the chosen studies; `advance` is told the share that is done."""
    studies = studies_for(gpu, only)
    curves: list[Curve] = []
    for number, study in enumerate(studies):

        def part(share: float, before: int = number) -> None:
            advance((before + share) / len(studies))

        curves += study.simulate(gpu, part)
    return [c for c in curves if only in c.name and c.points]
