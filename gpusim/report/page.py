"""The frame of every HTML page: Plotly, styles, script and data inside one file, nothing fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from gpusim.report.colours import theme_css
from gpusim.report.figure import Figure

__all__ = ["page"]

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(
    title: str,
    subtitle: str,
    nav: tuple[str, str],
    body: str,
    footer: str,
    figures: list[Figure],
    tensors: Sequence[str],
) -> str:
    """A whole page as text.

    Args:
        title, subtitle, footer: plain text.
        nav: (what the links lead to, the links as HTML).
        body: HTML of the main part.
        figures: drawn into the elements of their names.
        tensors: those that get a colour.
    """
    from plotly.offline import get_plotlyjs

    data = json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)} · gpusim</title>
<style>{_asset("style.css")}{theme_css(tensors)}</style>
</head>
<body>
<header><div><h1>{escape(title)}</h1><p>{escape(subtitle)}</p><nav aria-label="{nav[0]}">{nav[1]}</nav></div></header>
<main>{body}</main>
<footer>{escape(footer)}</footer>
<script type="application/json" id="figures">{data}</script>
<script>{get_plotlyjs()}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files("gpusim.report").joinpath("assets", name).read_text(encoding="utf-8")
