"""Kinds of source: how far a figure of a GPU can be trusted, read off the text that says where it comes from."""

from __future__ import annotations

import re

__all__ = ["KINDS", "kind_of"]

KINDS = {
    "data sheet": "a data sheet, white paper, programming guide or standard says so",
    "published": "measured or modelled by others and published",
    "measured": "measured for this project, on this card",
    "fitted": "chosen so that the simulator reproduces measurements of this card",
    "as another GPU": "inherited with `extends`: true of that GPU, taken to hold for this one",
    "estimate": "nobody publishes it: a guess, with its reason",
    "follows": "follows from a figure that was changed",
    "given": "set by a file that extends another, or by --set, without a source of its own",
    "default": "filled in because nothing was said",
}
"""Kind → what it means."""

_PATTERNS = (
    (r"as \S+: ", "as another GPU"),
    (r"follows ", "follows"),
    (r"estimate\b", "estimate"),
    (r"measured\b", "measured"),
    (r"fitted\b", "fitted"),
    (r"set (by|in) ", "given"),
    (r"default\b|as \S+\.\S+$", "default"),
    (r"gpu-benches|publi(c|shed)\b|Ramulator", "published"),
)


def kind_of(source: str) -> str:
    """The kind, one of `KINDS`, of a figure whose source is `source`.

    >>> kind_of("NVIDIA H200 data sheet"), kind_of("as h200: fitted: 56 MiB"), kind_of("estimate: as before")
    ('data sheet', 'as another GPU', 'estimate')
    """
    return next((kind for pattern, kind in _PATTERNS if re.match(pattern, source)), "data sheet")
