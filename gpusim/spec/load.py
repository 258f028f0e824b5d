"""From a name or a file, and `--set` options, to a `GpuSpec`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpusim.errors import UserError
from gpusim.spec.consistency import complete, derive
from gpusim.spec.document import KEYS, Document, did_you_mean, preset_names, preset_path, read_toml, require_known
from gpusim.spec.model import GpuSpec

__all__ = ["load_gpu", "override", "preset_names"]

T = TypeVar("T")


def load_gpu(name_or_path: str | Path, overrides: Sequence[str] = ()) -> GpuSpec:
    """The GPU called `name_or_path` (a preset in any case, or a TOML file), changed by `section.key=value` overrides.

    >>> load_gpu("h200", ["l2.size=120MiB"]).l2.size_bytes
    125829120

    Raises:
        UserError: no such GPU or file, an unknown key, or a value that is not allowed.
    """
    path = _find(str(name_or_path))
    document = _resolve(path, ())
    where = f"GPU file {path}" if preset_path(str(name_or_path)) is None else f"GPU {path.stem}"
    return _build(_with_overrides(document, overrides), where)


def override(spec: GpuSpec, overrides: Sequence[str]) -> GpuSpec:
    """`spec` changed by `section.key=value` overrides; UserError on a bad one."""
    document = Document(spec.document, spec.sources)
    return _build(_with_overrides(document, overrides), f"GPU {spec.name}")


def _find(name_or_path: str, relative_to: Path | None = None) -> Path:
    preset = preset_path(name_or_path)
    if preset is not None:
        return preset
    path = Path(name_or_path) if relative_to is None else relative_to / name_or_path
    if path.is_file():
        return path
    hint = did_you_mean(name_or_path.lower(), preset_names())
    raise UserError(f"GPU {name_or_path!r} is neither a file nor one of {', '.join(preset_names())}{hint}")


def _resolve(path: Path, children: tuple[Path, ...]) -> Document:
    """The document in `path` on top of those it extends."""
    if path.resolve() in children:
        raise UserError(f"GPU file {path} extends itself")
    own = read_toml(path)
    values: Mapping[str, Any] = own.values
    if "name" not in values:
        values = {"name": path.stem, **values}
    if not own.extends:
        return Document(values, own.sources)
    parent = _inherited(_resolve(_find(own.extends, path.parent), (*children, path.resolve())))
    try:
        return _changed(parent, values, own.sources, f"set in {path.name}")
    except ValueError as error:
        raise UserError(f"GPU file {path}: {error}") from None


def _inherited(parent: Document) -> Document:
    """`parent` with sources that say which GPU they speak of, unless that is said already."""
    name = parent.values["name"]
    sources = {
        key: text if re.match(r"as \S+: ", text) else f"as {name}: {text}" for key, text in parent.sources.items()
    }
    return Document(parent.values, sources)


def _with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    given: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise UserError(f"--set {text!r} is not of the form section.key=value, such as l2.size=120MiB")
        require_known(f"--set {text}", key)
        try:
            KEYS[key].parse(value)
        except ValueError as error:
            raise UserError(f"--set {text}: {error}") from None
        given[key] = value
    try:
        return _changed(document, given, {}, "set by --set") if given else document
    except ValueError as error:
        raise UserError(f"--set {' '.join(overrides)}: {error}") from None


def _changed(parent: Document, given: Mapping[str, Any], sources: Mapping[str, str], label: str) -> Document:
    """`parent` with `given` on top, and what follows from it.

    Timing that was measured on the parent's memory goes with it: one that names its `hbm.standard` has that one's.
    """
    if "hbm.standard" in given:
        parent = Document({k: v for k, v in parent.values.items() if not k.startswith("hbm.timing.")}, parent.sources)
    derived = derive(parent.values, given)
    values = {**parent.values, **{key: value for key, (value, _) in derived.items()}, **given}
    kept = {key: text for key, text in parent.sources.items() if key not in given}
    followed = {key: f"follows {cause}; before: {kept.get(key, 'unknown')}" for key, (_, cause) in derived.items()}
    return Document(values, {**kept, **followed, **dict.fromkeys(given, label), **sources})


def _build(document: Document, where: str) -> GpuSpec:
    try:
        values, filled = complete(document.values)
        missing = [key for key in KEYS if key not in values]
        if missing:
            raise ValueError(f'key {missing[0]} is missing (extends = "h200" would give every key a value)')
        sources = {**document.sources, **filled}
        return _instance(GpuSpec, "", values, {"sources": sources, "document": dict(document.values)})
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _instance(cls: type[T], prefix: str, values: Mapping[str, Any], extra: Mapping[str, Any]) -> T:
    """A dataclass of the model from the dotted keys that start with `prefix`."""
    arguments = dict(extra)
    for f in fields(cls):  # type: ignore[arg-type]  # every class here is a dataclass
        if "key" not in f.metadata:
            continue
        path = prefix + f.metadata["key"]
        if "section" in f.metadata:
            arguments[f.name] = _instance(f.metadata["section"], path + ".", values, {})
        elif "entries" in f.metadata:
            arguments[f.name] = {entry: _parsed(f"{path}.{entry}", values) for entry in f.metadata["entries"]}
        else:
            arguments[f.name] = _parsed(path, values)
    return cls(**arguments)


def _parsed(key: str, values: Mapping[str, Any]) -> Any:
    try:
        return KEYS[key].parse(values[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
