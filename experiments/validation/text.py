"""Validation results as plain text and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from experiments.validation.curve import HOLD_OUT, Curve, Point

__all__ = ["curve_text", "error_text", "number", "summary_text", "to_csv", "verdict"]


def number(value: float) -> str:
    """Three digits, without an exponent."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def error_text(curve: Curve, value: float | None, signed: bool = False) -> str:
    """An error in percent, or as a difference of shares."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.1f} %" if curve.error == "relative" else f"{value:{sign}.3f}"


def verdict(curve: Curve) -> str:
    """`met`, `missed`, or `–` where no target is set."""
    return {True: "met", False: "missed", None: "–"}[curve.met]


def _place(curve: Curve, point: Point) -> str:
    return f"{point.label} {curve.x_unit}".strip()


def curve_text(curve: Curve) -> str:
    """One curve: its points, then its mean error against the target."""
    unit = f", {curve.unit}" if curve.unit else ""
    lines = [f"{curve.name}: {curve.title} ({curve.y_name}{unit})"]
    width = max([len(curve.x_name), *(len(_place(curve, p)) for p in curve.points)])
    lines.append(f"  {curve.x_name:<{width}}  {'measured':>10}  {'simulated':>10}  {'error':>9}")
    for p in curve.points:
        mark = "  held out" if p.held_out else ""
        error = error_text(curve, curve.error_of(p), signed=True)
        lines.append(
            f"  {_place(curve, p):<{width}}  {number(p.measured):>10}  {number(p.simulated):>10}  {error:>9}{mark}"
        )
    lines.append(f"  mean absolute error {_means(curve)}")
    if curve.note:
        lines.append(f"  {curve.note}")
    return "\n".join(lines)


def _means(curve: Curve) -> str:
    target = "" if curve.target is None else f"; target {error_text(curve, curve.target)}: {verdict(curve)}"
    parts = ", ".join(
        f"{name} {error_text(curve, mean)}"
        for name, mean in (("others", curve.mean_error(False)), ("held out", curve.mean_error(True)))
        if mean is not None
    )
    return f"{error_text(curve, curve.mean_error())} ({parts}){target}"


def summary_text(curves: Sequence[Curve]) -> str:
    """A line per curve."""
    width = max(len(c.name) for c in curves)
    lines = [
        f"mean absolute errors; every {HOLD_OUT}rd point of a curve is reported apart, as held out",
        f"  {'curve':<{width}}  {'points':>6}  {'all':>8}  {'others':>8}  {'held out':>8}  {'target':>8}",
    ]
    for c in curves:
        cells = (error_text(c, value) for value in (c.mean_error(), c.mean_error(False), c.mean_error(True), c.target))
        lines.append(f"  {c.name:<{width}}  {len(c.points):>6}  {'  '.join(f'{x:>8}' for x in cells)}  {verdict(c)}")
    judged = [c.met for c in curves if c.met is not None]
    lines.append(f"{sum(judged)} of {len(judged)} targets met")
    return "\n".join(lines)


def to_csv(curves: Sequence[Curve]) -> str:
    """A line per point."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["curve", "x", "x_unit", "unit", "measured", "simulated", "error", "error_kind", "held_out", "target"]
    )
    for c in curves:
        for p in c.points:
            values = (p.measured, p.simulated, c.error_of(p))
            target = "" if c.target is None else c.target
            writer.writerow(
                [c.name, p.label, c.x_unit, c.unit, *(f"{v:.6g}" for v in values), c.error, int(p.held_out), target]
            )
    return out.getvalue()
