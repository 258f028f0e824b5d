"""Figure: roofline. What the roofs allow, what the closed form promises, where the simulated kernels are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpusim.report.colours import result_colour
from gpusim.report.fields import Result, intensity, labels, ratio
from gpusim.report.figure import Figure, axis, figure, rounded
from gpusim.report.text import amount

__all__ = ["Point", "points", "roofline_figure"]

_SYMBOLS = {"closed form": "diamond-open", "total": "circle", "kernel": "circle-open", "total at the L2": "square-open"}
_SIZES = {"closed form": 13, "total": 13, "kernel": 9, "total at the L2": 10}


class Point(NamedTuple):
    """One mark: FLOP per byte and FLOP/s; None where there are no bytes, FLOPs or time."""

    result: str
    what: str
    name: str
    intensity: float | None
    flops: float | None

    @property
    def drawable(self) -> bool:
        """Whether a logarithmic axis has a place for it."""
        return bool(self.intensity and self.flops) and math.isfinite(self.intensity or 0)


def points(result: Result, label: str) -> list[Point]:
    """Closed form at the speed its roof allows; simulated total at HBM and at the L2; each kernel at HBM."""
    closed = result["analytic"]["arithmetic_intensity"]
    machine = result["machine"]
    attainable = min(machine["peak_flops"], closed * machine["hbm_bytes_per_second"]) if closed else None
    total = result["total"]
    found = [
        Point(label, "closed form", "closed form", closed, attainable),
        Point(label, "total", "total", intensity(total), _speed(total)),
        Point(label, "total at the L2", "total at the L2", intensity(total, "l2"), _speed(total)),
    ]
    kernels = result["kernels"] if len(result["kernels"]) > 1 else []
    return found + [Point(label, "kernel", str(k["name"]), intensity(k), _speed(k)) for k in kernels]


def _speed(counters: Mapping[str, Any]) -> float | None:
    """FLOP/s."""
    return ratio(float(counters["flops"] or 0), float(counters["time_us"] or 0) * 1e-6)


def roofline_figure(results: Sequence[Result], name: str) -> Figure:
    """All results in one log-log figure; a set of roofs per distinct machine."""
    every = [points(result, label) for result, label in zip(results, labels(results), strict=True)]
    drawn = [point for group in every for point in group if point.drawable]
    machines = {_roof_key(result): result for result in results}
    left, right = _span(drawn, list(machines.values()))
    data = []
    for index, result in enumerate(machines.values()):
        data += _roofs(result, left, right, index, len(machines) > 1)
    for index, group in enumerate(every):
        data += _marks([point for point in group if point.drawable], result_colour(index))
    low = min([p.flops for p in drawn if p.flops] or [1e12]) / 2
    high = max(float(result["machine"]["peak_flops"]) for result in results) * 2
    layout = {
        "height": 440,
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top", "font": {"size": 11}},
        "margin": {"l": 62, "r": 16, "t": 16, "b": 46},
        "xaxis": axis("FLOP per byte", type="log", range=[math.log10(left), math.log10(right)], dtick=1),
        "yaxis": axis("FLOP/s", type="log", range=[math.log10(low), math.log10(high)], dtick=1, tickformat="~s"),
    }
    return figure(name, "roofline", data, layout)


def _roof_key(result: Result) -> tuple[object, ...]:
    machine = result["machine"]
    return (result["gpu"], *(machine[k] for k in ("peak_flops", "hbm_bytes_per_second", "l2_bytes_per_second")))


def _span(drawn: Sequence[Point], results: Sequence[Result]) -> tuple[float, float]:
    """Smallest and largest FLOP per byte to show."""
    ridges = [r["machine"]["peak_flops"] / r["machine"]["hbm_bytes_per_second"] for r in results]
    xs = [p.intensity for p in drawn if p.intensity] + ridges
    return min(xs) / 4, max(xs) * 4


def _roofs(result: Result, left: float, right: float, index: int, several: bool) -> list[dict[str, Any]]:
    machine = result["machine"]
    peak = float(machine["peak_flops"])
    suffix = f", {result['gpu']}" if several else ""
    traces = []
    for level, key, dash in (("HBM", "hbm_bytes_per_second", "solid"), ("L2", "l2_bytes_per_second", "dash")):
        rate = float(machine[key])
        xs = [left, min(max(peak / rate, left), right)]
        label = f"{level} roof {amount(rate, 'B/s')}{suffix}"
        traces.append(_roof(xs, [min(peak, rate * x) for x in xs], label, dash, index))
    start = min(max(peak / float(machine["l2_bytes_per_second"]), left), right)
    label = f"Peak {amount(peak, 'FLOP/s')}{suffix}"
    return [*traces, _roof([start, right], [peak, peak], label, "dot", index)]


def _roof(xs: list[float], ys: list[float], label: str, dash: str, index: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": rounded(xs),
        "y": rounded(ys),
        "line": {"color": "var(--ink)" if index == 0 else "var(--muted)", "width": 1.5, "dash": dash},
        "hovertemplate": f"{label}<extra></extra>",
        "meta": {"row": "roof"},
    }


def _marks(group: Sequence[Point], colour: str) -> list[dict[str, Any]]:
    """One trace per kind of point."""
    traces = []
    for what, symbol in _SYMBOLS.items():
        chosen = [point for point in group if point.what == what]
        if not chosen:
            continue
        title = f"{chosen[0].result}: {'kernels' if what == 'kernel' else what}"
        marker = {"symbol": symbol, "size": _SIZES[what], "color": colour, "line": {"width": 2, "color": colour}}
        hover = "<b>%{text}</b><br>%{x:,.1f} FLOP/byte<br>%{y:.3s}FLOP/s<extra></extra>"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": title,
                "text": [f"{point.result}: {point.name}" for point in chosen],
                "x": rounded(point.intensity for point in chosen),
                "y": rounded(point.flops for point in chosen),
                "marker": marker,
                "hovertemplate": hover,
                "meta": {"row": "point", "what": what},
            }
        )
    return traces
