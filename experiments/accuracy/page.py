"""Accuracy as one self-contained HTML page: a scatter per counter, errors per group, the worst kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from experiments.accuracy.quantities import QUANTITIES, Quantity
from experiments.accuracy.rows import Row, groups, statistics
from experiments.accuracy.text import (
    GROUP_HEAD,
    LEGEND,
    QUANTITY_HEAD,
    ROLES,
    WORST_HEAD,
    error_text,
    group_cells,
    quantity_cells,
    worst_cells,
)
from gpusim.report.colours import result_colour
from gpusim.report.figure import Figure, axis, figure
from gpusim.report.page import page
from gpusim.report.sections import grid

__all__ = ["figures_of", "render_page"]

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon", "pentagon", "bowtie")


def figures_of(rows: Sequence[Row]) -> list[Figure]:
    """A figure per quantity, `scatter-0`, `scatter-1`, … ."""
    return [_scatter(rows, quantity, f"scatter-{number}") for number, quantity in enumerate(QUANTITIES)]


def _scatter(rows: Sequence[Row], quantity: Quantity, name: str) -> Figure:
    """Simulated against measured, the line where they are equal, a symbol per algorithm, hollow where held out."""
    log = not quantity.in_points
    shown = [row for row in rows if _visible(row, quantity, log)]
    values = [side[quantity.field] / quantity.scale for row in shown for side in (row.measured, row.simulated)]
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    equal = {"type": "scatter", "mode": "lines", "name": "equal", "x": [low, high], "y": [low, high]}
    data: list[dict[str, object]] = [equal | {"line": {"color": "var(--muted)", "width": 1}, "hoverinfo": "skip"}]
    for number, (algorithm, members) in enumerate(groups(rows, lambda row: row.case.algorithm)):
        points = [row for row in members if row in shown]
        if points:
            data.append(_trace(algorithm, points, quantity, number))
    scale = {"type": "log", "dtick": 1} if log else {}
    layout = {
        "height": 420,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        "xaxis": axis(f"measured {quantity.title} ({quantity.unit})", **scale),
        "yaxis": axis(f"simulated ({quantity.unit})", **scale),
    }
    return figure(name, "scatter", data, layout)


def _visible(row: Row, quantity: Quantity, log: bool) -> bool:
    values = (row.measured[quantity.field], row.simulated[quantity.field])
    return all(math.isfinite(v) and (v > 0 or not log) for v in values)


def _trace(algorithm: str, rows: Sequence[Row], quantity: Quantity, number: int) -> dict[str, object]:
    symbol = SYMBOLS[number % len(SYMBOLS)]
    held = rows[0].case.held_out
    return {
        "type": "scatter",
        "mode": "markers",
        "name": algorithm,
        "x": [row.measured[quantity.field] / quantity.scale for row in rows],
        "y": [row.simulated[quantity.field] / quantity.scale for row in rows],
        "text": [f"{row.name}: {error_text(quantity, row.error(quantity), True)}" for row in rows],
        "hovertemplate": "%{text}<br>measured %{x:.4g}, simulated %{y:.4g}<extra></extra>",
        "marker": {
            "color": result_colour(number),
            "size": 8,
            "symbol": [f"{symbol}-open" if row.case.held_out else symbol for row in rows] if held else symbol,
        },
    }


def render_page(rows: Sequence[Row], title: str, subtitle: str) -> str:
    """The whole page as text."""
    sections = {
        "summary": ("Summary", _summary(rows)),
        "scatter": ("Simulated against measured", _scatters(rows)),
        "groups": ("Errors by algorithm, shape and state of the L2", _table(GROUP_HEAD, group_cells(rows))),
        "worst": ("The kernels furthest from a target", _table(WORST_HEAD, worst_cells(rows))),
    }
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, (name, _) in sections.items())
    body = "".join(f'<section id="{k}"><h2>{escape(name)}</h2>{part}</section>' for k, (name, part) in sections.items())
    return page(title, subtitle, ("Sections", links), body, "Simulated by gpusim.", figures_of(rows), ())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[escape(row[0]), *row[1:]] for row in rows]
    return f'<div class="card">{grid(head, cells, name=head[0])}</div>'


def _summary(rows: Sequence[Row]) -> str:
    cards = []
    for held_out, role in ROLES.items():
        members = [row for row in rows if row.case.held_out == held_out]
        if members:
            cards.append(f"<h3>{role.capitalize()} rows</h3>" + _table(QUANTITY_HEAD, quantity_cells(members)))
    return f"<p>{escape(LEGEND)}</p>" + "".join(cards)


def _scatters(rows: Sequence[Row]) -> str:
    cards = []
    for number, quantity in enumerate(QUANTITIES):
        figures = statistics(rows, quantity)
        said = f"mean error {error_text(quantity, figures.mean)}, largest {error_text(quantity, figures.largest)}"
        label = f"{quantity.title}: simulated against measured"
        cards.append(
            f'<div class="card"><h3>{escape(quantity.title)}</h3><p class="formula">{escape(said)}</p>'
            f'<div class="figure" id="scatter-{number}" role="img" aria-label="{escape(label)}"></div></div>'
        )
    lead = "A mark per kernel; hollow ones are held out. Values of zero have no place on a logarithmic axis."
    return f'<p>{lead}</p><div class="pair">{"".join(cards)}</div>'
