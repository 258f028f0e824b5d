"""A figure of a GPU file, and where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "estimate", "measured", "significant"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One key of a GPU file.

    Attributes:
        key: dotted, as in `--set`.
        value: as a GPU file writes it: text with a unit, a number, a list.
        source: where it comes from; its first word says how far to trust it (`gpusim.spec.sources`).
    """

    key: str
    value: Any
    source: str


def measured(key: str, value: Any, how: str, file: str) -> Figure:
    """A figure that a file of the folder holds, or follows from it by arithmetic alone."""
    return Figure(key, value, f"measured: {how} ({file})")


def estimate(key: str, value: Any, why: str) -> Figure:
    """A figure that the measurements at hand only suggest."""
    return Figure(key, value, f"estimate: {why}")


def significant(value: float, digits: int = 4) -> float:
    """`value` to so many significant digits; a whole number as an int."""
    if not value:
        return 0
    rounded = round(float(value), digits - 1 - math.floor(math.log10(abs(value))))
    return int(rounded) if rounded == int(rounded) else rounded
