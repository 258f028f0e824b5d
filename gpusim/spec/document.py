"""GPU files as flat documents: dotted key → value as written, and dotted key → source."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusim.errors import UserError
from gpusim.spec.model import GpuSpec
from gpusim.spec.schema import keys_of

__all__ = ["KEYS", "Document", "did_you_mean", "flatten", "preset_names", "preset_path", "read_toml", "require_known"]

KEYS = {k.path: k for k in keys_of(GpuSpec)}
"""Every key that a GPU file or `--set` may hold."""

_PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True)
class Document:
    """A GPU file after `extends`: values and sources by dotted key. `extends` is the parent's name or path."""

    values: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    extends: str = ""


def preset_names() -> list[str]:
    """Names of the GPUs that come with the package."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def preset_path(name: str) -> Path | None:
    """The file of the preset called `name` (any case), or None."""
    path = _PRESETS / f"{name.lower()}.toml"
    return path if name.lower() in preset_names() else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean l2.size?` for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested tables as (dotted key, value); arrays are leaves."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def require_known(where: str, key: str) -> None:
    """UserError if `key` is not a key of a GPU file."""
    if key in KEYS:
        return
    inside = [k for k in KEYS if k.startswith(key + ".")]
    hint = f"; it is a section, with keys such as {inside[0]}" if inside else did_you_mean(key, KEYS)
    raise UserError(f"{where}: unknown key {key!r}{hint}")


def read_toml(path: Path) -> Document:
    """The document in `path`, parents not yet looked at; UserError if it cannot be read."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"GPU file {path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"GPU file {path} is not valid TOML: {error}") from None
    extends = tables.pop("extends", "")
    if not isinstance(extends, str):
        raise UserError(f"GPU file {path}: extends must be the name of a GPU or a TOML file, not {extends}")
    sources = tables.pop("sources", {})
    if not isinstance(sources, Mapping):
        raise UserError(f"GPU file {path}: sources must be a table of key = text")
    values = dict(flatten(tables))
    for key in values:
        require_known(f"GPU file {path}", key)
    return Document(values, {key: str(text) for key, text in flatten(sources)}, extends)
