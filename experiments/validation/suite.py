"""Which studies there are for which GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.measurements import folder_of
from experiments.validation.capacity_study import read_all_study, reads_study
from experiments.validation.curve import Curve
from experiments.validation.fabric_study import fabric_studies
from experiments.validation.public_study import public_studies
from experiments.validation.speed_study import speed_studies
from experiments.validation.study import Study, chosen
from experiments.validation.write_study import write_studies
from gpusim.errors import UserError
from gpusim.spec import GpuSpec

__all__ = ["CARDS", "measured_studies", "run_suite", "studies_for"]

CARDS = {"h200": "", "v100-sxm2": "v100", "a100-80gb-sxm": "a100", "h100-pcie": "h100-pcie"}
"""GPU preset → name of its published curves; the H200's were measured for this project."""


def measured_studies(folder: Path) -> list[Study]:
    """The studies of a folder of measurements, as `python -m kernels_cupy.calibrate` makes it."""
    return [
        reads_study(folder),
        read_all_study(folder),
        *write_studies(folder),
        *speed_studies(folder),
        *fabric_studies(folder),
    ]


def studies_for(gpu: GpuSpec, only: str = "", folder: Path | None = None) -> list[Study]:
    """The studies of a GPU that give a curve whose name holds `only`.

    Args:
        folder: measurements to compare with; those of the GPU of that name if there is none.

    Raises:
        UserError: nothing is measured for the GPU, or no curve has such a name.
    """
    if folder is None and gpu.name not in CARDS:
        raise UserError(
            f"no measurements of {gpu.name} are at hand, only of {', '.join(CARDS)}; --measurements FOLDER names others"
        )
    published = CARDS[gpu.name] if folder is None else ""
    studies = public_studies(published) if published else measured_studies(folder or folder_of(gpu.name))
    found = chosen(studies, only)
    if not found:
        names = ", ".join(name for study in studies for name in study.curves)
        raise UserError(f"--only {only}: no curve of {gpu.name} has such a name, they are {names}")
    return found


def run_suite(gpu: GpuSpec, only: str, advance: Callable[[float], None], folder: Path | None = None) -> list[Curve]:
    """Simulate the chosen studies; `advance` is told the share that is done. `folder`: as for `studies_for`."""
    studies = studies_for(gpu, only, folder)
    curves: list[Curve] = []
    for number, study in enumerate(studies):

        def part(share: float, before: int = number) -> None:
            advance((before + share) / len(studies))

        curves += study.simulate(gpu, part)
    return [c for c in curves if only in c.name and c.points]
