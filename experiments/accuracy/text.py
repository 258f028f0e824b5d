"""Accuracy as text: aligned tables for terminals, Markdown for documents, CSV for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from experiments.accuracy.quantities import FIELDS, QUANTITIES, SMALL_LIMIT, SUITES, TARGETS, Quantity, Target
from experiments.accuracy.rows import Row, Statistics, groups, statistics, worst

__all__ = ["ROLES", "error_text", "group_cells", "markdown", "suite_text", "target_text", "to_csv", "verdict"]

ROLES = {False: "calibration", True: "held out"}
"""`Case.held_out` in words."""
STATES = {"warm": "L2 warm", "cold": "L2 cold", "flush": "L2 emptied before each kernel"}
NOTHING = "–"


def error_text(quantity: Quantity, value: float | None, signed: bool = False) -> str:
    """An error with its unit."""
    if value is None:
        return NOTHING
    decimals = 2 if abs(value) < 1 else 1
    unit = "%" if quantity.error_unit == "%" else "pt"
    return f"{value:{'+' if signed else ''}.{decimals}f} {unit}"


def target_text(quantity: Quantity, target: Target | None) -> str:
    """`3 %`, or `7 % (max 15 %)`."""
    if target is None:
        return NOTHING
    unit = "%" if quantity.error_unit == "%" else "pt"
    most = "" if target.largest is None else f" (max {target.largest:g} {unit})"
    return f"{target.mean:g} {unit}{most}"


def verdict(figures: Statistics, target: Target | None) -> str:
    """`met`, `missed`, or `–`."""
    return {True: "met", False: "missed", None: NOTHING}[figures.meets(target)]


def small_text(figures: Statistics) -> str:
    """How far off the rows were that are too small for a percentage."""
    if not figures.small:
        return NOTHING
    return f"{figures.small}: {figures.small_largest:.2f} {figures.quantity.unit}"


def quantity_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Per quantity: title, kernels, mean, bias, largest, correlation, small ones, target, verdict."""
    lines = []
    for quantity in QUANTITIES:
        target, figures = TARGETS[rows[0].case.suite].get(quantity.field), statistics(rows, quantity)
        lines.append(
            [
                quantity.title,
                str(figures.count),
                error_text(quantity, figures.mean),
                error_text(quantity, figures.bias, signed=True),
                error_text(quantity, figures.largest),
                NOTHING if figures.correlation is None else f"{figures.correlation:.4f}",
                small_text(figures),
                target_text(quantity, target),
                verdict(figures, target),
            ]
        )
    return lines


QUANTITY_HEAD = ("", "kernels", "mean error", "bias", "largest", "correlation", "small: off by", "target", "")


def group_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Mean absolute error of every quantity: a line per algorithm, then one per class of shapes and state of the L2."""
    lines = []
    for key in (lambda r: r.case.algorithm, lambda r: r.case.shape, lambda r: STATES[r.case.l2]):
        for name, members in groups(rows, key):
            errors = [error_text(q, statistics(members, q).mean) for q in QUANTITIES]
            lines.append([name, str(len(members)), *errors])
    return lines


GROUP_HEAD = ("mean error", "kernels", *(q.title for q in QUANTITIES))


def worst_cells(rows: Sequence[Row]) -> list[list[str]]:
    """The ten kernels that are furthest from a target."""
    lines = []
    for row, quantity, error in worst(rows, QUANTITIES):
        values = [f"{side[quantity.field] / quantity.scale:.1f}" for side in (row.measured, row.simulated)]
        role = ROLES[row.case.held_out]
        lines.append([row.name, quantity.title, *values, quantity.unit, error_text(quantity, error, True), role])
    return lines


WORST_HEAD = ("worst kernels", "", "measured", "simulated", "unit", "error", "")


def suite_text(rows: Sequence[Row], title: str) -> str:
    """Everything about one suite, for a terminal."""
    blocks = [f"{title}: {len(rows)} kernels of {len({row.case.label for row in rows})} runs"]
    for held_out, role in ROLES.items():
        members = [row for row in rows if row.case.held_out == held_out]
        if members:
            table = [(role, *QUANTITY_HEAD[1:]), *quantity_cells(members)]
            blocks.append(aligned(table))
    blocks.append(aligned([GROUP_HEAD, *group_cells(rows)]))
    blocks.append(aligned([WORST_HEAD, *worst_cells(rows)]))
    return "\n\n".join(blocks)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Sequence[Row], measured_runs: Mapping[str, int]) -> str:
    """The table of the README: per suite and quantity, calibration and held-out errors and the target.

    Args:
        measured_runs: runs that there are to simulate, by suite.
    """
    parts = []
    for suite, title in SUITES.items():
        members = [row for row in rows if row.case.suite == suite]
        if not members:
            parts.append(f"**{title[0].upper()}{title[1:]}**: not measured yet.")
            continue
        runs, there_are = len({row.case.label for row in members}), measured_runs[suite]
        left = f" ({there_are - runs} more are measured, but not simulated yet)" if there_are > runs else ""
        parts.append(f"**{title[0].upper()}{title[1:]}**, {len(members)} kernels of {runs} runs{left}:")
        parts.append(markdown_table(["", "calibration", "held out", "target", ""], _summary(members, suite)))
    return "\n\n".join(parts)


def _summary(rows: Sequence[Row], suite: str) -> list[list[str]]:
    lines = []
    for quantity in QUANTITIES:
        target = TARGETS[suite].get(quantity.field)
        sides = [statistics([r for r in rows if r.case.held_out == held], quantity) for held in ROLES]
        judged = [v for side in sides if (v := side.meets(target)) is not None]
        mark = NOTHING if not judged else "met" if all(judged) else "missed"
        lines.append([quantity.title, *map(_mean_and_largest, sides), target_text(quantity, target), mark])
    return lines


def _mean_and_largest(figures: Statistics) -> str:
    if figures.mean is None and not figures.small:
        return NOTHING
    mean, largest = (error_text(figures.quantity, value) for value in (figures.mean, figures.largest))
    small = f"; {figures.small} small, off by ≤ {figures.small_largest:.1f} MB" if figures.small else ""
    return f"{mean}, max {largest} ({figures.count}){small}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all but the first column to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


LEGEND = (
    "Mean of the absolute errors per kernel, largest error, and in brackets the number of kernels. Hit rates differ by "
    f"points (pt). DRAM bytes under 4 MB are judged by their difference, which may be {SMALL_LIMIT:g} MB."
)


def to_csv(rows: Sequence[Row]) -> str:
    """A line per kernel: what it is, and measured, simulated and error of every quantity."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = [f"{kind}_{field}" for field in FIELDS for kind in ("measured", "simulated", "error")]
    writer.writerow(["suite", "case", "algorithm", "shape", "l2", "held_out", "kernel", *kinds])
    for row in rows:
        case = row.case
        cells: list[object] = [case.suite, case.label, case.algorithm, case.shape, case.l2, int(case.held_out)]
        cells.append(row.kernel)
        for quantity in QUANTITIES:
            error = row.error(quantity)
            cells += [f"{side[quantity.field]:.12g}" for side in (row.measured, row.simulated)]
            cells.append("" if error is None else f"{error:.4f}")
        writer.writerow(cells)
    return out.getvalue()
