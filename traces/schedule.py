"""How an algorithm is tiled: frozen per-algorithm dataclasses with checked, named changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

KV_ORDERS = ("forward", "backward", "sawtooth")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Base of every algorithm's schedule. Fields are whole numbers, names or true/false."""

    def changed(self, changes: Mapping[str, str | int | bool]) -> Self:
        """A copy with `changes` applied; text is converted to the field's type.

        Raises:
            ValueError: unknown key or unfit value, in one sentence.
        """
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        converted = {}
        for key, value in changes.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"schedule key {key!r} is not one of {', '.join(known)}{hint}")
            converted[key] = _convert(key, value, known[key])
        return replace(self, **converted)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by key, which `changed` takes back."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _convert(key: str, value: str | int | bool, current: object) -> object:
    if isinstance(current, bool):
        text = str(value).lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            raise ValueError(f"schedule key {key} takes true or false, not {value!r}")
        return text in ("true", "1", "yes")
    if isinstance(current, int):
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"schedule key {key} takes a whole number, not {value!r}") from None
    return str(value)


def require(condition: bool, sentence: str) -> None:
    """Raise ValueError(`sentence`) unless `condition`."""
    if not condition:
        raise ValueError(sentence)


def require_one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is in `allowed`."""
    require(value in allowed, f"schedule key {key} is {value!r}, not one of {', '.join(allowed)}")


def require_multiple(key: str, value: int, of: int) -> None:
    """Raise ValueError unless `value` is a positive multiple of `of`."""
    require(value > 0 and value % of == 0, f"schedule key {key} must be a positive multiple of {of}, not {value}")


def key_value_blocks(count: int, order: str, q_block: int) -> list[int]:
    """The order in which `count` KV blocks are visited: from the first, from the last, or by turns (sawtooth)."""
    backward = order == "backward" or (order == "sawtooth" and q_block % 2 == 1)
    return list(range(count - 1, -1, -1) if backward else range(count))
