"""A comparison of one problem, measured and simulated, as plain text and as a self-contained page.

It is what `gpusim compare --json` writes: `fields` (title, unit, scale, error_unit by field), `kernels` and `total`
(field → measured, simulated, error, and in the total closed_form), `analytic`, `source`, `provenance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpusim.report.colours import result_colour
from gpusim.report.figure import Figure, axis, figure, rounded
from gpusim.report.page import page
from gpusim.report.sections import grid
from gpusim.report.text import NOTHING, facts, megabytes, short_shape, times

__all__ = ["aligned", "figures_of", "heading", "render_page", "render_text"]

Comparison = Mapping[str, Any]
HEAD = ("kernel", "level", "measured", "simulated", "error", "closed form")


def render_text(comparison: Comparison) -> str:
    """A line per kernel and level, the total, and HBM bytes against the closed form."""
    lines = aligned([HEAD, *_rows(comparison)])
    return "\n".join([*heading(comparison), "", *lines, "", _closed_form(comparison)]) + "\n"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first two columns are text, and the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (
        [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))] for row in rows
    )
    return ["  ".join(line).rstrip() for line in cells]


def heading(comparison: Comparison) -> list[str]:
    """What is compared: the run, its schedule, where the measurement is from."""
    return [_title(comparison), f"schedule {facts(comparison['schedule'])}", _origin(comparison)]


def _title(comparison: Comparison) -> str:
    return (
        f"{comparison['algorithm']} on {comparison['gpu']}: {short_shape(comparison['problem'])}, L2 {comparison['l2']}"
    )


def _origin(comparison: Comparison) -> str:
    known = {k: v for k, v in comparison["provenance"].items() if k in ("gpu", "driver", "cuda", "ncu", "date")}
    return f"measured: {comparison['source']}" + (f" ({facts(known)})" if known else "")


def _closed_form(comparison: Comparison) -> str:
    closed = comparison["analytic"]
    return (
        f"HBM bytes: closed form {megabytes(closed['hbm_bytes'])} MB, "
        f"measured {times(closed['measured_over_closed_form'])} of it, "
        f"simulated {times(closed['simulated_over_closed_form'])}"
    )


def _rows(comparison: Comparison) -> list[list[str]]:
    """Cells of `HEAD`; a kernel's name stands in its first row."""
    kernels = [(kernel["name"], kernel) for kernel in comparison["kernels"]]
    if len(kernels) > 1 or any("closed_form" in side for side in comparison["total"].values()):
        kernels.append(("total", comparison["total"]))
    rows = []
    for name, kernel in kernels:
        for number, (field, about) in enumerate(comparison["fields"].items()):
            rows.append(
                [name if number == 0 else "", f"{about['title']}, {about['unit']}", *_cells(kernel[field], about)]
            )
    return rows


def _cells(side: Mapping[str, float | None], about: Mapping[str, Any]) -> list[str]:
    values = [side["measured"], side["simulated"], side.get("closed_form")]
    measured, simulated, closed = (NOTHING if v is None else f"{v / about['scale']:,.2f}" for v in values)
    error = side["error"]
    unit = "%" if about["error_unit"] == "%" else "pt"
    return [
        measured,
        simulated,
        NOTHING if error is None else f"{error:+.1f} {unit}",
        closed if closed != NOTHING else "",
    ]


def figures_of(comparison: Comparison) -> list[Figure]:
    """`bytes`: MB per level of the whole run; `errors`: every kernel's error per level."""
    return [_bytes_figure(comparison), _error_figure(comparison)]


def _bytes_figure(comparison: Comparison) -> Figure:
    fields = {field: about for field, about in comparison["fields"].items() if field.endswith("_bytes")}
    titles = [about["title"] for about in fields.values()]
    data = []
    for index, (key, label) in enumerate(
        (("simulated", "simulated"), ("measured", "measured"), ("closed_form", "closed form"))
    ):
        values = [comparison["total"][field].get(key) for field in fields]
        scaled = [None if v is None else v / about["scale"] for v, about in zip(values, fields.values(), strict=True)]
        data.append(
            {"type": "bar", "name": label, "x": titles, "y": rounded(scaled), "marker": {"color": result_colour(index)}}
        )
    return figure("bytes", "bars", data, _layout("MB, all kernels", "log"))


def _error_figure(comparison: Comparison) -> Figure:
    fields = comparison["fields"]
    titles = [f"{about['title']} ({about['error_unit']})" for about in fields.values()]
    data = [
        {
            "type": "bar",
            "name": kernel["name"],
            "x": titles,
            "y": rounded([kernel[field]["error"] for field in fields]),
            "marker": {"color": result_colour(index)},
        }
        for index, kernel in enumerate(comparison["kernels"])
    ]
    return figure("errors", "bars", data, _layout("simulated − measured (% or points)", "linear"))


def _layout(title: str, scale: str) -> dict[str, object]:
    return {
        "height": 360,
        "barmode": "group",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        "xaxis": axis("", type="category"),
        "yaxis": axis(title, type=scale),
    }


def render_page(comparison: Comparison) -> str:
    """The whole page as text."""
    table = grid(
        HEAD, [[escape(row[0]) or "&nbsp;", *row[1:]] for row in _rows(comparison)], name="Measured and simulated"
    )
    origin = f"<p>{escape(_origin(comparison))}<br>schedule {escape(facts(comparison['schedule']))}</p>"
    figures = "".join(
        f'<div class="card"><h3>{title}</h3>'
        f'<div class="figure" id="{name}" role="img" aria-label="{title}"></div></div>'
        for name, title in (("bytes", "Bytes per level"), ("errors", "Errors per kernel and level"))
    )
    sections = {
        "levels": ("Levels", f'{origin}<div class="pair">{figures}</div><p>{escape(_closed_form(comparison))}</p>'),
        "table": ("Table", f'<div class="card">{table}</div>'),
    }
    links = "".join(f'<a href="#{key}">{name}</a>' for key, (name, _) in sections.items())
    body = "".join(f'<section id="{key}"><h2>{name}</h2>{part}</section>' for key, (name, part) in sections.items())
    title, shape = _title(comparison).split(": ", 1)
    footer = "Simulated by gpusim. MB = 10⁶ bytes."
    return page(
        f"{title}, measured and simulated", shape, ("Sections", links), body, footer, figures_of(comparison), ()
    )
