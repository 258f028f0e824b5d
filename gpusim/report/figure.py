"""What every figure shares: Plotly's JSON as plain dictionaries, theme colours as CSS variables.

Plain dictionaries keep `gpusim` from importing Plotly's Python objects (over a second) to write a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

__all__ = ["Figure", "axis", "figure", "rounded"]

Figure = dict[str, Any]
"""`id`, `kind`, `data` and `layout` as Plotly takes them, and `meta` for the page's script."""


def figure(name: str, kind: str, data: list[dict[str, Any]], layout: dict[str, Any], **meta: object) -> Figure:
    """One figure for the page's element `name`."""
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12, "color": "var(--ink)"},
        "margin": {"l": 62, "r": 16, "t": 30, "b": 46},
        "hoverlabel": {
            "bgcolor": "var(--card)",
            "bordercolor": "var(--line)",
            "font": {"family": "var(--font)", "size": 12, "color": "var(--ink)"},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--accent)"},
        "showlegend": False,
    }
    return {"id": name, "kind": kind, "data": data, "layout": base | layout, "meta": meta}


def axis(title: str, **more: object) -> dict[str, Any]:
    """An axis with the page's grid and a title that names the unit."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "var(--muted)"}},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "tickcolor": "var(--line)",
        "tickfont": {"color": "var(--muted)"},
        "zeroline": False,
        "automargin": True,
        **more,
    }


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Seven significant digits, enough to add up to the table's bytes; None where there is no finite number."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.7g}") for v in values]
