"""A curve: what was measured, what the simulator says at the same places, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

__all__ = ["HOLD_OUT", "Curve", "Error", "Point", "curve"]

HOLD_OUT = 3
"""Every third point of a curve (the third, the sixth, …) is held out of any fit, and reported apart."""

Error = Literal["relative", "difference"]
"""How a point's error is taken: simulated / measured - 1, or simulated - measured (of shares and rates, 0 to 1)."""


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a curve.

    Attributes:
        x: where, in the curve's `x_unit`.
        label: the same as text, where a number would say nothing.
        measured, simulated: values in the curve's `unit`.
        held_out: not to be used for fitting.
    """

    x: float
    label: str
    measured: float
    simulated: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one quantity along one axis.

    Attributes:
        name: as in `--only`, `read_fixed.hit_rate`.
        title: one line for people.
        x_name, x_unit, y_name, unit: the axes; units may be empty.
        error: how the error of a point is taken.
        target: largest mean of the points' absolute errors; None where none is asked for.
        points: in order of x.
        log_x, log_y: axes that span decades.
        note: what one must know to judge it.
    """

    name: str
    title: str
    x_name: str
    x_unit: str
    y_name: str
    unit: str
    error: Error
    target: float | None
    points: tuple[Point, ...]
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    def error_of(self, point: Point) -> float:
        """The point's error with its sign."""
        if self.error == "difference":
            return point.simulated - point.measured
        return point.simulated / point.measured - 1

    def mean_error(self, held_out: bool | None = None) -> float | None:
        """Mean absolute error of all points, of those held out, or of the others; None if there are none."""
        chosen = [p for p in self.points if held_out is None or p.held_out == held_out]
        return fmean(abs(self.error_of(p)) for p in chosen) if chosen else None

    @property
    def met(self) -> bool | None:
        """Whether the mean error of all points is within the target; None without a target."""
        mean = self.mean_error()
        return None if self.target is None or mean is None else mean <= self.target


def curve(shape: Curve, measured: Mapping[float, float], simulated: Mapping[float, float]) -> Curve:
    """`shape` with a point for each measured x that was simulated, in order of x."""
    places = sorted(x for x in measured if x in simulated)
    points = tuple(
        Point(x, f"{x:g}", measured[x], simulated[x], i % HOLD_OUT == HOLD_OUT - 1) for i, x in enumerate(places)
    )
    return replace(shape, points=points)
