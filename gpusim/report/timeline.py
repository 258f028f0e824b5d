"""Figure: traffic over time, stacked by tensor, with the hit rate and what the SMs do below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpusim.report.colours import tensor_colour
from gpusim.report.fields import LEVELS, STATES, Result, microseconds
from gpusim.report.figure import Figure, axis, figure, rounded

__all__ = ["bandwidths", "bin_edges", "hit_rates", "sm_fractions", "timeline_figure"]

_ROWS = {"y": [0.47, 1.0], "y2": [0.265, 0.405], "y3": [0.0, 0.2]}  # share of the figure's height


def bin_edges(result: Result) -> list[float]:
    """Start of every bin and the end of the last, in µs."""
    timeline = result["timeline"]
    width = microseconds(result, timeline["bin_cycles"])
    return [width * i for i in range(len(timeline["l2_lookup_sectors"]) + 1)]


def bandwidths(result: Result, level: str, tensor: str) -> list[float] | None:
    """GB/s per bin of `tensor` at `level`; None if the timeline has no such row."""
    row = result["timeline"]["bytes"].get(level, {}).get(tensor)
    if row is None:
        return None
    seconds = float(result["timeline"]["bin_cycles"]) / float(result["machine"]["clock_hz"])
    return [float(count) / seconds / 1e9 for count in row]


def hit_rates(result: Result) -> list[float | None]:
    """L2 hit rate per bin, 0 to 1; None where nothing was looked up."""
    timeline = result["timeline"]
    pairs = zip(timeline["l2_hit_sectors"], timeline["l2_lookup_sectors"], strict=True)
    return [hit / lookup if lookup else None for hit, lookup in pairs]


def sm_fractions(result: Result) -> dict[str, list[float]]:
    """Per bin, the fraction of SMs whose tensor cores or vector units are busy, that wait for memory, or idle.

    Tensor cores and vector units of one SM can be busy at once, so these two can add up to more than 1. Several agents
    of an SM can wait at once, also while others work: waiting is shown as no more than what the busy units leave, and
    idle is the rest.
    """
    timeline = result["timeline"]
    whole = float(timeline["bin_cycles"]) * float(result["machine"]["sm_count"])
    shares = {name: [float(cycles) / whole for cycles in timeline[key]] for name, _, key in STATES}
    busy = [sum(bins) for bins in zip(shares["tensor"], shares["vector"], strict=True)]
    shares["wait"] = [min(w, max(0.0, 1.0 - b)) for w, b in zip(shares["wait"], busy, strict=True)]
    shares["idle"] = [max(0.0, 1.0 - sum(bins)) for bins in zip(*shares.values(), strict=True)]
    return shares


def timeline_figure(result: Result, tensors: Sequence[str], name: str) -> Figure:
    """Three rows over one time axis (µs); the page's level selector shows one level's traces at a time.

    Args:
        tensors: every tensor of the page, which fixes the colours.
        name: id of the page's element.
    """
    edges = rounded(bin_edges(result))
    data = [
        _area(edges, values, tensor, tensor_colour(tensors, tensor), level.key, "GB/s", meta)
        for level in LEVELS
        for tensor in tensors
        if (values := bandwidths(result, level.key, tensor)) is not None
        for meta in ({"level": level.key, "tensor": tensor},)
    ]
    for trace in data:
        trace["visible"] = trace["meta"]["level"] == LEVELS[0].key
    data.append(_hit_trace(edges, hit_rates(result)))
    shares = sm_fractions(result)
    for key, label in (*((key, label) for key, label, _ in STATES), ("idle", "Idle")):
        trace = _area(edges, shares[key], label, f"var(--s-{key})", "state", "of SMs", {"state": key})
        data.append(trace | {"yaxis": "y3", "hovertemplate": "%{y:.1%} of SMs<extra>" + label + "</extra>"})
    spans = _spans(result)
    most = max((sum(bins) for bins in zip(*shares.values(), strict=True)), default=1.0)
    layout = {
        "height": 575,
        "hovermode": "x unified",
        "margin": {"l": 62, "r": 16, "t": 46, "b": 46},
        "xaxis": axis(
            "Time (µs)",
            anchor="y3",
            range=[0, edges[-1]],
            showgrid=False,
            unifiedhovertitle={"text": "from %{x:.2f} µs"},
        ),
        "yaxis": axis(f"{LEVELS[0].label} (GB/s)", domain=_ROWS["y"], fixedrange=True, rangemode="tozero"),
        "yaxis2": axis("L2 hits", domain=_ROWS["y2"], range=[0, 1.02], tickformat=".0%", nticks=4, fixedrange=True),
        "yaxis3": axis(
            "SMs", domain=_ROWS["y3"], tickformat=".0%", nticks=4, fixedrange=True, range=[0, max(1.0, most)]
        ),
        "shapes": [_boundary(start) for _, start, _ in spans],
        "annotations": [_label(span) for span in spans],
    }
    levels = {level.key: level.label for level in LEVELS}
    return figure(name, "timeline", data, layout, levels=levels, end=edges[-1], spans=spans)


def _area(
    edges: list[float | None],
    values: Sequence[float],
    label: str,
    colour: str,
    group: str,
    unit: str,
    meta: Mapping[str, str],
) -> dict[str, Any]:
    """A stacked step curve: constant over each bin, zero from the last bin's end on."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": edges,
        "y": [*rounded(values), 0],
        "stackgroup": group,
        "line": {"shape": "hv", "width": 0, "color": colour},
        "fillcolor": colour,
        "hovertemplate": "%{y:,.1f} " + unit + "<extra>" + label + "</extra>",
        "meta": dict(meta),
    }


def _hit_trace(edges: list[float | None], rates: Sequence[float | None]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "L2 hit rate",
        "x": edges,
        "y": [*rounded(rates), None],
        "yaxis": "y2",
        "line": {"shape": "hv", "width": 1.75, "color": "var(--accent)"},
        "hovertemplate": "%{y:.1%}<extra>L2 hit rate</extra>",
        "meta": {"row": "hit"},
    }


def _spans(result: Result) -> list[tuple[str, float, float]]:
    """Name, start and end of every kernel, in µs."""
    spans = []
    clock = 0.0
    for kernel in result["kernels"]:
        start = float(kernel.get("start_cycle", clock) or 0)
        clock = start + float(kernel["cycles"] or 0)
        spans.append((str(kernel["name"]), microseconds(result, start), microseconds(result, clock)))
    return spans


def _boundary(start: float) -> dict[str, Any]:
    line = {"color": "var(--muted)", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": start, "x1": start, "y0": 0, "y1": 1.04, "yref": "paper", "line": line}


def _label(span: tuple[str, float, float]) -> dict[str, Any]:
    return {
        "text": span[0].replace("<", "&lt;"),
        "x": span[1],
        "y": 1.0,
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 3,
        "showarrow": False,
        "font": {"size": 11, "color": "var(--muted)"},
    }
