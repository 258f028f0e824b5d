"""A GPU file from figures: what was not measured is taken from the preset of the nearest kin, and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.calibration.device_figures import device_figures
from experiments.calibration.figure import Figure
from experiments.calibration.folder import Measurements
from experiments.calibration.hbm_figures import hbm_figures
from experiments.calibration.l2_figures import l2_figures
from experiments.calibration.noc_figures import noc_figures
from experiments.calibration.rate_figures import rate_figures
from experiments.calibration.sm_figures import sm_figures
from gpusim.errors import UserError
from gpusim.spec import GpuSpec, load_gpu, preset_names
from gpusim.spec.consistency import derive
from gpusim.spec.document import KEYS
from gpusim.spec.sources import kind_of

__all__ = ["BASES", "Preset", "base_of", "derive_preset"]

BASES = {(7, 0): "v100-sxm2", (8, 0): "a100-80gb-sxm", (8, 9): "rtx4090", (9, 0): "h200", (10, 0): "b200"}
"""Compute capability → the preset that says what was not measured; others take the nearest older one."""
LINE_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Preset:
    """A GPU file in the making.

    Attributes:
        name: the GPU's.
        base: the preset that figures are inherited from.
        about: what the file begins with, a line each.
        figures: by key, in the order of the file.
    """

    name: str
    base: str
    about: tuple[str, ...]
    figures: Mapping[str, Figure]

    def with_figures(self, figures: Iterable[Figure]) -> Preset:
        """The same with other figures for some keys."""
        return replace(self, figures={**self.figures, **{figure.key: figure for figure in figures}})

    def of_kind(self, *kinds: str) -> list[Figure]:
        """The figures whose source is of one of these kinds (`gpusim.spec.sources`)."""
        return [figure for figure in self.figures.values() if kind_of(figure.source) in kinds]

    def to_toml(self) -> str:
        """The text of the file."""
        lines = [f"# {line}" for line in self.about]
        tops = [figure for key, figure in self.figures.items() if "." not in key]
        if self.base in preset_names():  # so that figures which later versions ask for are there too
            lines.append(f"extends = {_value(self.base)}")
        lines += [f"name = {_value(self.name)}", *(f"{f.key} = {_value(f.value)}" for f in tops)]
        lines += ["", "[sources]", *(f"{f.key} = {_value(f.source)}" for f in tops)]
        for section, figures in _sections(self.figures).items():
            names = [(f.key.rpartition(".")[2], f) for f in figures]
            lines += ["", f"[{section}]", *(f"{name} = {_value(f.value)}" for name, f in names)]
            lines += ["", f"[sources.{section}]", *(f"{name} = {_value(f.source)}" for name, f in names)]
        return "\n".join(lines) + "\n"


def base_of(capability: tuple[int, int]) -> str:
    """The preset that stands in for what was not measured on a card of this compute capability."""
    older = [known for known in BASES if known <= capability]
    return BASES[max(older) if older else min(BASES)]


def derive_preset(m: Measurements, name: str, base_name: str = "") -> Preset:
    """Every figure of the card, by the rules of the `*_figures` modules.

    Args:
        name: of the GPU in the file.
        base_name: preset or GPU file that has what was not measured; chosen by compute capability if empty.

    Raises:
        UserError: no such base, or a file that is not as the benchmarks write it.
    """
    base = load_gpu(base_name or base_of(m.device.capability))
    found = {figure.key: figure for figure in _all_figures(m, base)}
    given = {key: figure.value for key, figure in found.items()}
    followed = derive(base.document, given)
    figures: dict[str, Figure] = {}
    for key in KEYS:
        if key in found:
            figures[key] = found[key]
        elif key in followed:
            value, cause = followed[key]
            figures[key] = Figure(key, value, f"follows {cause}; before: {_inherited(base, key)}")
        elif key in base.document and key != "name":
            figures[key] = Figure(key, base.document[key], _inherited(base, key))
    return Preset(name, base.name, tuple(_about(m, base)), figures)


def _all_figures(m: Measurements, base: GpuSpec) -> Iterator[Figure]:
    rules: Mapping[str, Callable[[], Iterator[Figure]]] = {
        "the device": lambda: device_figures(m),
        "the SMs": lambda: sm_figures(m),
        "arithmetic": lambda: rate_figures(m),
        "GPCs, fabric and merging": lambda: noc_figures(m),
        "the L2": lambda: l2_figures(m, base),
        "the memory": lambda: hbm_figures(m),
    }
    for what, figures in rules.items():
        try:
            yield from figures()
        except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(f"--measurements {m.folder}: its files give no figures of {what}: {said}") from None


def _about(m: Measurements, base: GpuSpec) -> Iterator[str]:
    facts = m.facts
    yield f"{facts.get('gpu', 'A GPU')}, calibrated by gpusim calibrate from the measurements in {m.folder.name}."
    parts = (
        f"driver {facts.get('driver', '?')}",
        f"CUDA {facts.get('cuda', '?')}",
        f"measured {facts.get('date', '?')}",
    )
    yield ", ".join(parts) + "."
    if not m.counted:
        yield "No hardware counters were permitted: figures that need them are estimates, or as in another GPU."
    yield f'"as {base.name}": not measured, taken from that GPU.'


def _inherited(base: GpuSpec, key: str) -> str:
    source = base.sources.get(key, "unknown")
    return source if re.match(r"as \S+: ", source) else f"as {base.name}: {source}"


def _sections(figures: Mapping[str, Figure]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for key, figure in figures.items():
        section = key.rpartition(".")[0]
        if section:
            found.setdefault(section, []).append(figure)
    return found


def _value(value: Any) -> str:
    """A value as TOML: long lists over several lines."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (list, tuple)):
        return repr(value)
    line = f"[{', '.join(map(str, value))}]"
    if len(line) <= LINE_WIDTH:
        return line
    rows, row = [], ""
    for item in value:
        if len(row) + len(f"{item}, ") > LINE_WIDTH:
            rows.append(row.rstrip())
            row = ""
        row += f"{item}, "
    return "[\n" + "".join(f"    {line}\n" for line in (*rows, row.rstrip())) + "]"
