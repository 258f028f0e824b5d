"""What a calibration found, as text: every figure by how far to trust it, next to what it would have been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.calibration.figure import Figure
from experiments.calibration.fits import Fitted
from experiments.calibration.folder import Measurements
from experiments.calibration.preset import Preset
from gpusim.spec import load_gpu
from gpusim.spec.sources import KINDS, kind_of
from kernels_cupy.calibrate import BENCHMARKS

__all__ = ["report_text"]

LONGEST = 24


def report_text(preset: Preset, m: Measurements, fitted: Sequence[Fitted]) -> str:
    """The report: what each figure is derived from, the searches, and what is not known of this card."""
    parts = [_heading(preset, m), _figures(preset), _searches(fitted), _missing(m, preset)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(preset: Preset, m: Measurements) -> str:
    counts = {kind: len(preset.of_kind(kind)) for kind in KINDS}
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    counted = "" if m.counted else "\nno hardware counters: event times only"
    return f"{preset.name}: {m.facts.get('gpu', 'a GPU')}, calibrated on {m.folder}\nfigures: {listed}{counted}"


def _figures(preset: Preset) -> str:
    base = load_gpu(preset.base).document if preset.base else {}
    shown = [f for f in preset.figures.values() if kind_of(f.source) != "as another GPU"]
    rows = [(f.key, _short(f.value), _short(base.get(f.key, "–")), f.source) for f in shown]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    header = ("figure", "value", preset.base, "from")
    widths = [max(width, len(title)) for width, title in zip(widths, header, strict=False)]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + f"  {row[3]}"
        for row in (header, *rows)
    ]
    return "what was found, next to the preset that the rest is taken from\n" + "\n".join(lines)


def _searches(fitted: Sequence[Fitted]) -> str:
    if not fitted:
        return "no figure was fitted by simulation"
    lines = ["fitted by simulation (mean error of the curves at calibration points, in units of their targets)"]
    for found in fitted:
        lines.append(f"  {found.fit.key}: {', '.join(found.judged)}")
        for value, error in found.errors.items():
            lines.append(f"    {value:12} {error:.3f}{'  chosen' if value == found.best else ''}")
    return "\n".join(lines)


def _missing(m: Measurements, preset: Preset) -> str:
    """Files that are not there, estimates, and what is taken from another GPU."""
    lines: list[str] = []
    whats = {benchmark.output: benchmark for benchmark in BENCHMARKS}
    for name in m.missing:
        why = ", from counters" if whats[name].counters else ""
        lines.append(f"  {name} is not there ({whats[name].what}{why})")
    lines += _listed("estimates", preset.of_kind("estimate"))
    lines += _listed(f"as in {preset.base}, not measured", preset.of_kind("as another GPU", "follows"))
    return "what is not known of this card\n" + "\n".join(lines) if lines else ""


def _listed(title: str, figures: Sequence[Figure]) -> list[str]:
    return [f"  {title}: {', '.join(figure.key for figure in figures)}"] if figures else []


def _short(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, (list, tuple)):
        text = ",".join(map(str, value))
        return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return str(value).lower() if isinstance(value, bool) else str(value)
