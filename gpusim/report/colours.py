"""One colour per tensor, the same in every figure and told apart by colour-blind readers (Okabe-Ito hues).

Figures name colours as CSS variables (`var(--t3)`); the page resolves them for the light or dark theme. A gradient
(dQ) has the lighter shade of its tensor's (Q) hue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["result_colour", "tensor_colour", "tensor_css", "theme_css"]


class _Pair(NamedTuple):
    light: str
    dark: str


_NAMED = {
    "Q": _Pair("#0072b2", "#3d9bdc"),
    "K": _Pair("#e69f00", "#eeb033"),
    "V": _Pair("#009e73", "#1fb98c"),
    "O": _Pair("#d55e00", "#ec7a2c"),
    "S": _Pair("#cc79a7", "#d88db7"),
    "P": _Pair("#6f56b3", "#9a84da"),
    "dQ": _Pair("#7dbfe8", "#a3d3f2"),
    "dK": _Pair("#f3cf80", "#f7dfa8"),
    "dV": _Pair("#84d3ba", "#a9e3d0"),
    "dO": _Pair("#f2a878", "#f8c7a5"),
    "dS": _Pair("#e8c0d6", "#f0d5e4"),
    "dP": _Pair("#bdb0e0", "#d4cbee"),
    "LSE": _Pair("#8a8f98", "#a5abb5"),
    "D": _Pair("#4d5661", "#d0d5dc"),
}
_OTHERS = (
    _Pair("#56b4e9", "#7cc6f0"),
    _Pair("#999933", "#b9b94f"),
    _Pair("#882255", "#c25b8d"),
    _Pair("#117733", "#4aa868"),
    _Pair("#7b4b2a", "#b98a66"),
    _Pair("#555555", "#bbbbbb"),
)
_RESULTS = (
    _Pair("#4f46e5", "#8b8cf8"),
    _Pair("#be123c", "#fb7185"),
    _Pair("#0f766e", "#2dd4bf"),
    _Pair("#a16207", "#facc15"),
)
_SOFT = 0.5  # opacity of a flow's ribbon


def tensor_colour(tensors: Sequence[str], tensor: str, soft: bool = False) -> str:
    """CSS variable of `tensor`, whose place in `tensors` (all of the page) names it; `soft` is see-through."""
    return f"var(--t{tensors.index(tensor)}{'-soft' if soft else ''})"


def result_colour(index: int) -> str:
    """CSS variable of the result number `index`."""
    return f"var(--r{index % len(_RESULTS)})"


def theme_css(tensors: Sequence[str]) -> str:
    """The CSS rules that define the variables for light and dark."""
    light, dark = tensor_css(tensors)
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def tensor_css(tensors: Sequence[str]) -> tuple[str, str]:
    """Declarations of the variables, for light and for dark."""
    pairs = _assign(tensors)
    light = "".join(_declare(i, pair.light) for i, pair in enumerate(pairs))
    dark = "".join(_declare(i, pair.dark) for i, pair in enumerate(pairs))
    light += "".join(f"--r{i}:{pair.light};" for i, pair in enumerate(_RESULTS))
    dark += "".join(f"--r{i}:{pair.dark};" for i, pair in enumerate(_RESULTS))
    return light, dark


def _assign(tensors: Sequence[str]) -> list[_Pair]:
    spare = 0
    pairs = []
    for tensor in tensors:
        if tensor in _NAMED:
            pairs.append(_NAMED[tensor])
        else:
            pairs.append(_OTHERS[spare % len(_OTHERS)])
            spare += 1
    return pairs


def _declare(index: int, colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"--t{index}:{colour};--t{index}-soft:rgba({red},{green},{blue},{_SOFT});"
