"""The study of quantised KV caches as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.kv_quantisation import CACHES, Accuracy, Table
from gpusim.report.colours import result_colour
from gpusim.report.figure import Figure, axis, figure
from gpusim.report.page import page
from gpusim.report.sections import grid

__all__ = ["figures_of", "render_page"]

SYMBOLS = {"token": "circle", "channel": "square", "head": "triangle-up"}
GROUPS = ("V only", "K (and V), all channels", "K (and V), outlier channels in fp16")


def figures_of(rows: Sequence[Accuracy]) -> list[Figure]:
    """A figure per kind of cache: error of O against bytes per token."""
    return [_figure([r for r in rows if r.cache == cache], f"accuracy-{i}") for i, cache in enumerate(CACHES)]


def _group(row: Accuracy) -> str:
    if row.settings.get("kv_dtype", "fp16") == "fp16":
        return GROUPS[0]
    return GROUPS[2 if row.settings["outlier_channels"] else 1]


def _figure(rows: Sequence[Accuracy], name: str) -> Figure:
    data = []
    for index, group in enumerate(GROUPS):
        for scale, symbol in SYMBOLS.items():
            points = [r for r in rows if r.settings.get("kv_scale") == scale and _group(r) == group]
            label = f"{group}, per {scale}"
            data.append(_trace(label, points, {"color": result_colour(index), "size": 9, "symbol": symbol}))
    floor = [r for r in rows if not r.settings]
    data.append(_trace("fp16", floor, {"color": "var(--ink)", "size": 11, "symbol": "star"}))
    layout = {
        "height": 460,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        "xaxis": axis("bytes per token and KV head", rangemode="tozero"),
        "yaxis": axis("relative L2 error of O (%)", type="log", dtick="D2"),
    }
    return figure(name, "curve", data, layout)


def _trace(label: str, rows: Sequence[Accuracy], marker: dict[str, object]) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [r.token_bytes for r in rows],
        "y": [100 * r.output_error for r in rows],
        "text": [r.scheme for r in rows],
        "hovertemplate": "%{text}<br>%{x:.1f} B, %{y:.3f} %<extra></extra>",
        "marker": marker,
    }


def render_page(rows: Sequence[Accuracy], tables: Sequence[Table], gpu: str) -> str:
    """The whole page as text."""
    lead = (
        "Relative L2 distances from attention in float64 on the numbers before quantisation; the numbers are those of "
        "FlashAttention-2's tile program on dequantised tiles. fp16 (the star) is the floor. P stays in 16 bits: it "
        "never leaves the SM, so a narrow format saves no byte of HBM, and where one key dominates a row the other "
        "probabilities round to zero."
    )
    figures = figures_of(rows)
    cards = "".join(
        f'<div class="card"><h3>Keys and values with {escape(cache)}</h3><div class="figure" id="{f["id"]}" role="img" '
        f'aria-label="Error of the output against bytes per token, {escape(cache)}"></div></div>'
        for cache, f in zip(CACHES, figures, strict=True)
    )
    lists = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>'
        f"{grid(head, [[escape(row[0]), *row[1:]] for row in cells], name=title)}</div>"
        for title, head, cells in tables
    )
    body = (
        f'<section id="figures-of-error"><h2>Error against bytes</h2><p>{lead}</p><div class="pair">{cards}</div>'
        f'</section><section id="tables"><h2>Tables</h2>{lists}</section>'
    )
    links = '<a href="#figures-of-error">Error against bytes</a><a href="#tables">Tables</a>'
    subtitle = f"{len(rows) // len(CACHES)} schemes; decoding simulated on {gpu}"
    return page("Quantised KV cache", subtitle, ("Sections", links), body, "Computed by gpusim.", figures, ())
