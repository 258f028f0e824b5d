"""The accuracy gate: errors of a few fast runs as they were published, which may only shrink.

They are kept apart from the simulated counters, so that accepting new counters (`python -m experiments.drift --accept`)
does not accept larger errors: only `python -m experiments.accuracy --accept-worse` does.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.accuracy.cases import fast_cases
from experiments.accuracy.quantities import QUANTITIES
from experiments.accuracy.rows import Row, groups, statistics
from experiments.accuracy.simulated import SIMULATED
from kernels_cupy.commented_csv import read_rows

__all__ = ["SLACK", "Figure", "Worse", "complaints", "gate_figures", "publish", "read_published"]

PUBLISHED = SIMULATED / "published_errors.csv"
SLACK = 0.1
"""Percent, points or MB by which an error may differ from the published one: platforms round differently."""

COLUMNS = ("suite", "field", "kernels", "mean_error", "small_kernels", "small_largest")


class Worse(ValueError):
    """An error of the gate's runs is larger than the published one."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Errors of one quantity over the gate's kernels of a suite.

    Attributes:
        kernels: those judged in percent or points.
        mean: of their absolute errors.
        small: kernels too small for that.
        small_largest: their largest absolute difference, in the quantity's unit.
    """

    kernels: int
    mean: float
    small: int
    small_largest: float


Figures = Mapping[tuple[str, str], Figure]
"""(suite, field) → errors."""


def gate_figures(rows: Sequence[Row]) -> Figures:
    """Errors of the kernels among `rows` that belong to the gate's runs."""
    labels = {(case.suite, case.label) for case in fast_cases()}
    chosen = [row for row in rows if (row.case.suite, row.case.label) in labels]
    found = {}
    for suite, members in groups(chosen, lambda row: row.case.suite):
        for quantity in QUANTITIES:
            s = statistics(members, quantity)
            found[suite, quantity.field] = Figure(s.count, s.mean or 0.0, s.small, s.small_largest or 0.0)
    return found


def read_published(path: Path = PUBLISHED) -> Figures:
    """The published errors; none where there is no file."""
    if not path.is_file():
        return {}
    rows = read_rows(path)
    return {
        (row["suite"], row["field"]): Figure(
            int(row["kernels"]), float(row["mean_error"]), int(row["small_kernels"]), float(row["small_largest"])
        )
        for row in rows
    }


def complaints(figures: Figures, published: Figures) -> list[str]:
    """A sentence for every error that has grown."""
    said = []
    for (suite, field), now in figures.items():
        before = published.get((suite, field))
        if before is None or (before.kernels, before.small) != (now.kernels, now.small):
            continue  # other runs than those published: nothing to compare with
        for what, new, old in (("mean error", now.mean, before.mean), ("MB", now.small_largest, before.small_largest)):
            if new > old + SLACK:
                said.append(f"{suite} {field}: {what} {new:.2f}, published {old:.2f}")
    return said


def publish(rows: Sequence[Row], accept_worse: bool = False, path: Path = PUBLISHED) -> None:
    """Write the errors of the gate's runs.

    Raises:
        Worse: one has grown, and that was not accepted.
    """
    figures = gate_figures(rows)
    grown = complaints(figures, read_published(path))
    if grown and not accept_worse:
        raise Worse("errors have grown; --accept-worse publishes them:\n  " + "\n  ".join(grown))
    out = io.StringIO()
    out.write("# Errors of the runs of the accuracy gate, written by: python -m experiments.accuracy\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (suite, field), f in figures.items():
        writer.writerow([suite, field, f.kernels, f"{f.mean:.3f}", f.small, f"{f.small_largest:.3f}"])
    path.write_text(out.getvalue())
