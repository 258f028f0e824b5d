"""DRAM standards: organisation of a stack and timing in nanoseconds, from `standards/*.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusim.errors import UserError
from gpusim.spec.document import did_you_mean, flatten

__all__ = ["Standard", "load_standard", "standard_names"]

_FOLDER = Path(__file__).parent / "standards"


@dataclass(frozen=True, slots=True)
class Standard:
    """What a DRAM standard says.

    Attributes:
        name: as in `hbm.standard`.
        reference_bytes_per_s: rate of one pseudo-channel at which the timings are quoted.
        values: dotted key of a GPU file (`hbm.row_size`, `hbm.timing.rp`) → value.
        sources: where each value comes from.
        follows_data_rate: timing keys that are counted in bursts, so they shrink when the data rate grows.
    """

    name: str
    reference_bytes_per_s: float
    values: dict[str, Any]
    sources: dict[str, str]
    follows_data_rate: tuple[str, ...]


def standard_names() -> list[str]:
    """Names of the known standards."""
    return [_read(path)["name"] for path in sorted(_FOLDER.glob("*.toml"))]


def load_standard(name: str) -> Standard:
    """The standard called `name` (any case); UserError if there is none."""
    path = _FOLDER / f"{name.lower()}.toml"
    known = standard_names()
    if name.lower() not in {k.lower() for k in known}:
        hint = did_you_mean(name, known)
        raise UserError(f"hbm.standard {name!r} is not one of {', '.join(known)}{hint}")
    tables = _read(path)
    return Standard(
        name=tables["name"],
        reference_bytes_per_s=float(tables["reference_bytes_per_s"]),
        values=dict(flatten({"hbm": tables["hbm"]})),
        sources=dict(flatten({"hbm": tables["sources"]["hbm"]})),
        follows_data_rate=tuple(tables["follows_data_rate"]),
    )


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
