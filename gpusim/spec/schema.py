"""How the dataclasses of `gpusim.spec.model` name and parse the keys of a GPU file.

A field says its TOML key and its parser in its metadata, so that the model is the only list of keys there is:

    clock_hz: float = field(metadata=key("clock", parse_frequency))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Key", "choice", "key", "keys_of", "section", "table", "text"]

Parser = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a GPU file.

    Attributes:
        path: dotted name, as in `--set` (`l2.size`).
        parse: turns the file's value into base units, or raises ValueError.
        attribute: the dataclass field it fills, dotted from the GPU (`l2.size_bytes`).
    """

    path: str
    parse: Parser
    attribute: str


def key(name: str, parse: Parser) -> Mapping[str, Any]:
    """Metadata of a field that is one key."""
    return {"key": name, "parse": parse}


def table(name: str, entries: tuple[str, ...], parse: Parser) -> Mapping[str, Any]:
    """Metadata of a field that is a sub-table with a fixed set of entries (`tensor_flops`)."""
    return {"key": name, "parse": parse, "entries": entries}


def section(name: str, cls: type) -> Mapping[str, Any]:
    """Metadata of a field that is a section with a dataclass of its own."""
    return {"key": name, "section": cls}


def keys_of(cls: type, prefix: str = "", attribute: str = "") -> Iterator[Key]:
    """Every key below `cls`, in order of declaration."""
    for f in fields(cls):
        if "key" not in f.metadata:
            continue
        path, name = prefix + f.metadata["key"], attribute + f.name
        if "section" in f.metadata:
            yield from keys_of(f.metadata["section"], path + ".", name + ".")
        elif "entries" in f.metadata:
            for entry in f.metadata["entries"]:
                yield Key(f"{path}.{entry}", f.metadata["parse"], f"{name}.{entry}")
        else:
            yield Key(path, f.metadata["parse"], name)


def choice(*allowed: str) -> Parser:
    """Parser of one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        shown = repr(value) if isinstance(value, str) else str(value)
        raise ValueError(f"{shown} is not one of {', '.join(allowed)}")

    return parse


def text(value: object) -> str:
    """Parser of free text."""
    if isinstance(value, str):
        return value
    raise ValueError(f"{value} is not text")
