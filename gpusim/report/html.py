"""Results as one self-contained HTML page: Plotly, styles, script and data inside, nothing fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape

from gpusim.report import sections
from gpusim.report.colours import tensor_colour
from gpusim.report.fields import LEVELS, STATES, Result, has_timeline, labels, tensors_of
from gpusim.report.figure import Figure
from gpusim.report.flow import flow_figure
from gpusim.report.page import page
from gpusim.report.roofline import roofline_figure
from gpusim.report.text import short_shape, write_atomic
from gpusim.report.timeline import timeline_figure

__all__ = ["figures_of", "render_page", "write_report"]

_SECTIONS = {
    "summary": "Summary",
    "kernels": "Kernels",
    "timeline": "Timeline",
    "flow": "Memory hierarchy",
    "roofline": "Roofline",
    "tensors": "Tensors",
    "details": "Details",
}


def write_report(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Write the page for one or several results to `path` (replaced all at once)."""
    write_atomic(render_page(results), path)


def figures_of(results: Sequence[Result]) -> list[Figure]:
    """The figures of the page: `timeline-0`, `flow-0`, … per result, and one `roofline-all`."""
    tensors = tensors_of(results)
    figures = [timeline_figure(r, tensors, f"timeline-{i}") for i, r in enumerate(results) if has_timeline(r)]
    figures += [flow_figure(result, tensors, f"flow-{i}") for i, result in enumerate(results)]
    return [*figures, roofline_figure(results, "roofline-all")]


def render_page(results: Sequence[Result]) -> str:
    """The whole page as text."""
    names, tensors = labels(results), tensors_of(results)
    title = f"{' and '.join(names) if len(names) < 4 else f'{len(names)} results'} on {_gpus(results)}"
    shapes = "; ".join(dict.fromkeys(short_shape(result["problem"]) for result in results))
    links = "".join(f'<a href="#{key}">{label}</a>' for key, label in _SECTIONS.items())
    body = "".join(
        (
            _summary(results, names),
            _kernels(results, names),
            _timeline(results, names, tensors),
            _flow(results, names, tensors),
            _roofline(results, names),
            _tensors(results, names, tensors),
            _each("details", results, [sections.details(result) for result in results], names, pair=True),
        )
    )
    footer = "Simulated by gpusim. MB = 10⁶ bytes; times in µs of the SM clock."
    return page(title, shapes, ("Sections", links), body, footer, figures_of(results), tensors)


def _gpus(results: Sequence[Result]) -> str:
    return ", ".join(dict.fromkeys(str(result["gpu"]) for result in results))


def _section(key: str, body: str, lead: str = "") -> str:
    said = f"<p>{lead}</p>" if lead else ""
    return f'<section id="{key}"><h2>{_SECTIONS[key]}</h2>{said}{body}</section>'


def _each(
    key: str, results: Sequence[Result], bodies: Sequence[str], names: Sequence[str], lead: str = "", pair: bool = False
) -> str:
    """A section with a card per result, two abreast where `pair` and the window is wide."""
    cards = "".join(sections.titled(i, names[i], bodies[i]) for i in range(len(results)))
    return _section(key, f'<div class="pair">{cards}</div>' if pair else cards, lead)


def _summary(results: Sequence[Result], names: Sequence[str]) -> str:
    cards = "".join(sections.titled(i, names[i], sections.summary(result)) for i, result in enumerate(results))
    more = f'<div class="card">{sections.comparison(results, names)}</div>' if len(results) > 1 else ""
    gap = '<div style="height:14px"></div>' if more else ""
    return _section("summary", f'<div class="pair">{cards}</div>{gap}{more}')


def _kernels(results: Sequence[Result], names: Sequence[str]) -> str:
    return _each("kernels", results, [sections.kernel_table(r, n) for r, n in zip(results, names, strict=True)], names)


def _timeline(results: Sequence[Result], names: Sequence[str], tensors: Sequence[str]) -> str:
    levels = "".join(
        f'<button type="button" data-level="{level.key}" aria-pressed="{str(i == 0).lower()}">{level.label}</button>'
        for i, level in enumerate(LEVELS)
    )
    chips = "".join(
        f'<button type="button" data-tensor="{escape(tensor)}" aria-pressed="true">'
        f"{sections.dot(tensor_colour(tensors, tensor))}{escape(tensor)}</button>"
        for tensor in tensors
    )
    same = '<div class="switch"><button type="button" data-same-scale aria-pressed="false">Same scales</button></div>'
    same = same if sum(map(has_timeline, results)) > 1 else ""
    switches = (
        f'<div class="bar"><div class="switch" role="group" aria-label="Level">{levels}</div>'
        f'<div class="chips" role="group" aria-label="Tensors shown">{chips}</div>{same}</div>'
    )
    states = [*((key, label) for key, label, _ in STATES), ("idle", "Idle")]
    legend = "".join(f'<span class="chip">{sections.dot(f"var(--s-{k})")}{label}</span>' for k, label in states)
    bodies = []
    for index, result in enumerate(results):
        if not has_timeline(result):
            bodies.append('<p class="empty">This result was stored without a timeline.</p>')
            continue
        bodies.append(
            f'<div class="figure" id="timeline-{index}" role="img" aria-label="Traffic, {escape(names[index])}"></div>'
            f'<div class="chips legend">{legend}</div><details data-figure="timeline-{index}"><summary>'
            "Values per bin</summary><div class='scroll' tabindex='0' role='region' aria-label='Values per bin'></div>"
            "</details>"
        )
    cards = "".join(sections.titled(i, names[i], body) for i, body in enumerate(bodies))
    lead = "Traffic of the chosen level per tensor, L2 hit rate, and what the SMs do. Dotted lines: a kernel starts."
    return _section("timeline", f'{switches}<div class="pair">{cards}</div>', lead)


def _flow(results: Sequence[Result], names: Sequence[str], tensors: Sequence[str]) -> str:
    bodies = [
        f'<div class="figure" id="flow-{i}" role="img" aria-label="Bytes between the levels, {escape(names[i])}"></div>'
        for i in range(len(results))
    ]
    lead = (
        "Reads on the left, writes on the right, a ribbon per tensor as wide as its bytes. A ribbon growing from HBM "
        "to the L2 is reuse in the L2; on to the SMs it grows where requests of several SMs for a line were merged. "
        "The numbers are in <a href='#tensors'>Tensors</a>."
    )
    cards = "".join(sections.titled(i, names[i], body) for i, body in enumerate(bodies))
    chips = "".join(f'<span class="chip">{sections.dot(tensor_colour(tensors, t))}{escape(t)}</span>' for t in tensors)
    return _section("flow", f'<div class="bar chips">{chips}</div>{cards}', lead)


def _roofline(results: Sequence[Result], names: Sequence[str]) -> str:
    body = '<div class="card"><div class="figure" id="roofline-all" role="img" aria-label="Roofline"></div></div>'
    table = f'<div class="card">{sections.roofline_table(results, names)}</div>'
    lead = "Intensity counts HBM bytes, at the L2 the bytes read and written there. The closed form sits on its roof."
    return _section("roofline", body + table, lead)


def _tensors(results: Sequence[Result], names: Sequence[str], tensors: Sequence[str]) -> str:
    tables = [sections.tensor_table(r, tensors, n) for r, n in zip(results, names, strict=True)]
    return _each("tensors", results, tables, names)
