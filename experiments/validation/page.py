"""The curves as one self-contained HTML page: a figure per curve, measured points against the simulated line."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.validation.curve import HOLD_OUT, Curve
from experiments.validation.text import error_text, number, verdict
from gpusim.report.colours import result_colour
from gpusim.report.figure import Figure, axis, figure
from gpusim.report.page import page
from gpusim.report.sections import grid

__all__ = ["figures_of", "render_page"]

_MEASURED, _SIMULATED = result_colour(1), result_colour(0)


def figures_of(curves: Sequence[Curve]) -> list[Figure]:
    """A figure per curve, `curve-0`, `curve-1`, … ."""
    return [_figure(curve, f"curve-{number}") for number, curve in enumerate(curves)]


def _figure(curve: Curve, name: str) -> Figure:
    named = any(p.label != f"{p.x:g}" for p in curve.points)
    xs: list[object] = [p.label if named else p.x for p in curve.points]
    data = [
        {
            "type": "scatter",
            "name": "simulated",
            "mode": "lines+markers" if len(xs) > 1 and not named else "markers",
            "x": xs,
            "y": [p.simulated for p in curve.points],
            "line": {"color": _SIMULATED, "width": 2},
            "marker": {"color": _SIMULATED, "size": 9 if named or len(xs) == 1 else 4, "symbol": "diamond"},
        }
    ]
    for label, held, symbol in (("measured", False, "circle"), ("measured, held out", True, "circle-open")):
        points = [i for i, p in enumerate(curve.points) if p.held_out == held]
        if points:
            data.append(
                {
                    "type": "scatter",
                    "name": label,
                    "mode": "markers",
                    "x": [xs[i] for i in points],
                    "y": [curve.points[i].measured for i in points],
                    "marker": {"color": _MEASURED, "size": 9, "symbol": symbol, "line": {"width": 2}},
                }
            )
    title = f"{curve.x_name} ({curve.x_unit})" if curve.x_unit else curve.x_name
    unit = f" ({curve.unit})" if curve.unit else ""
    log = not named and curve.log_x
    layout = {
        "height": 330,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        "xaxis": axis(
            title, type="log" if log else "category" if named else "linear", **(_ticks(curve) if log else {})
        ),
        "yaxis": axis(
            curve.y_name + unit, **({"type": "log", "dtick": "D2"} if curve.log_y else {"rangemode": "tozero"})
        ),
    }
    return figure(name, "curve", data, layout)


def _ticks(curve: Curve) -> dict[str, object]:
    """Powers of two on a logarithmic axis of sizes, SMs or threads, thinned where they would crowd."""
    low, high = curve.points[0].x, curve.points[-1].x
    powers = [2.0**e for e in range(-6, 24) if low <= 2.0**e <= high]
    powers = powers[:: -(-len(powers) // 9)] if powers else [low, high]
    return {"tickvals": powers, "ticktext": [f"{p:g}" for p in powers]}


def render_page(curves: Sequence[Curve], gpu: str, suite: str) -> str:
    """The whole page as text."""
    title = f"Validation of {gpu}, {suite} suite"
    links = "".join(f'<a href="#{escape(c.name)}">{escape(c.name)}</a>' for c in curves)
    cards = "".join(_card(curve, f"curve-{number}") for number, curve in enumerate(curves))
    lead = (
        f"Dots were measured on the card, diamonds and lines are simulated. Every {HOLD_OUT}rd point of a curve "
        "(hollow) is reported apart. Errors are of single points relative to the measurement, or differences of "
        "shares; means are of absolute values."
    )
    body = (
        f'<section id="summary"><h2>Summary</h2><p>{lead}</p><div class="card">{_summary(curves)}</div></section>'
        f'<section id="curves"><h2>Curves</h2><div class="pair">{cards}</div></section>'
    )
    return page(title, _count(curves), ("Curves", links), body, "Simulated by gpusim.", figures_of(curves), ())


def _count(curves: Sequence[Curve]) -> str:
    judged = [c.met for c in curves if c.met is not None]
    return f"{sum(judged)} of {len(judged)} targets met"


def _summary(curves: Sequence[Curve]) -> str:
    rows = [
        [
            f'<a href="#{escape(c.name)}">{escape(c.name)}</a>',
            str(len(c.points)),
            *(error_text(c, value) for value in (c.mean_error(), c.mean_error(False), c.mean_error(True), c.target)),
            verdict(c),
        ]
        for c in curves
    ]
    head = ("Curve", "Points", "Mean error", "of the others", "of those held out", "Target", "")
    return grid(head, rows, name="Mean errors per curve")


def _card(curve: Curve, name: str) -> str:
    rows = [
        [
            escape(p.label),
            number(p.measured),
            number(p.simulated),
            error_text(curve, curve.error_of(p), signed=True),
            "held out" if p.held_out else "",
        ]
        for p in curve.points
    ]
    unit = f" ({curve.x_unit})" if curve.x_unit else ""
    table = grid((curve.x_name + unit, "Measured", "Simulated", "Error", ""), rows, name=f"Points of {curve.name}")
    mean = f"mean error {error_text(curve, curve.mean_error())}"
    target = "" if curve.target is None else f", target {error_text(curve, curve.target)}: {verdict(curve)}"
    note = f'<p class="formula">{escape(curve.note)}</p>' if curve.note else ""
    label = f"{curve.title}, measured and simulated"
    return (
        f'<div class="card" id="{escape(curve.name)}"><h3>{escape(curve.title)}</h3>'
        f'<p class="formula">{escape(curve.name)}: {mean}{target}</p>'
        f'<div class="figure" id="{name}" role="img" aria-label="{escape(label)}"></div>{note}{table}</div>'
    )
