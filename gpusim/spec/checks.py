"""Checks that the dataclasses of the model share."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["at_least", "positive"]


def at_least(minimum: float, section: str, values: Mapping[str, float]) -> None:
    """ValueError unless every value is at least `minimum`; `section` and the name make the key in the message."""
    for name, value in values.items():
        if not value >= minimum:
            raise ValueError(f"{section}.{name} must be at least {minimum:g}, not {value:g}")


def positive(section: str, values: Mapping[str, float]) -> None:
    """ValueError unless every value is more than 0 and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{section}.{name} must be more than 0 and finite, not {value:g}")
