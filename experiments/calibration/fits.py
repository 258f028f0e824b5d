"""Figures that no benchmark shows by itself: chosen so that the simulator reproduces curves of the folder.

The search is bounded: a few values of one figure after another, on the points of the curves that are not held out
(`experiments.validation.curve.HOLD_OUT`), and of those only where the figure matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from experiments.calibration.figure import Figure
from experiments.calibration.folder import Measurements
from experiments.validation.capacity_study import PATTERNS, read_sizes, simulate_reads
from experiments.validation.curve import HOLD_OUT, Curve
from experiments.validation.speed_study import simulate_sms
from experiments.validation.study import Advance
from gpusim.spec import GpuSpec

__all__ = ["Fit", "Fitted", "fits_for", "run_fit"]

MIB = 1 << 20
KNEE = (0.6, 1.15)
"""Buffers between these shares of the L2 tell how much of it data can use, and what a far read leaves at home."""
FEW_SMS = 16
"""So many SMs alone do not fill the fabric or the memory: what bounds them is what each has in flight."""
KIB = 1 << 10

Simulate = Callable[[Path, Collection[float], GpuSpec, Advance], list[Curve]]


@dataclass(frozen=True, slots=True)
class Fit:
    """A search for one figure.

    Attributes:
        key: of the figure.
        values: what is tried.
        places: x of the calibration points that it is judged at.
        simulate: gives the curves at chosen places.
        curves: names of the curves that count.
    """

    key: str
    values: tuple[str, ...]
    places: tuple[float, ...]
    simulate: Simulate
    curves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a search found.

    Attributes:
        fit: the search.
        errors: value → mean error of the curves, in units of their targets.
        best: the value of least error.
        judged: names of the curves that counted.
    """

    fit: Fit
    errors: dict[str, float]
    best: str
    judged: tuple[str, ...]

    @property
    def figure(self) -> Figure:
        """The figure with its source."""
        tried = ", ".join(f"{value} {error:.2f}" for value, error in self.errors.items())
        text = f"{', '.join(self.judged)} at {len(self.fit.places)} calibration points; mean error in targets: {tried}"
        return Figure(self.fit.key, _plain(self.best), f"fitted: {text}")


def fits_for(m: Measurements, gpu: GpuSpec) -> Iterator[Fit]:
    """The searches that the folder's curves allow, in order; each starts from what those before it found."""
    few = _calibration(m.curves.get("sms_dram", {}), lambda x: x <= FEW_SMS)
    if few:
        start = gpu.sm.max_inflight_bytes // KIB
        values = tuple(f"{kib}KiB" for kib in range(max(8, start - 8), start + 17, 4))
        yield Fit("sm.max_inflight", values, few, simulate_sms, ("sms_dram",))
    knee = tuple(share * gpu.l2.size_bytes / MIB for share in KNEE)
    near = _calibration(read_sizes(m.folder), lambda x: knee[0] <= x <= knee[1])
    if near:
        quantities = ("dram_share", "hit_rate") if m.capacity else ("bandwidth",)
        names = tuple(f"{name}.{quantity}" for name in PATTERNS for quantity in quantities)
        yield Fit("l2.data_share", ("0.8667", "0.9", "0.9333", "0.9667", "1"), near, simulate_reads, names)
        if gpu.l2.partitions > 1:
            values = ("none", "evict_first", "middle", "allocate")
            yield Fit("l2.home_allocation", values, near, simulate_reads, names)


def run_fit(fit: Fit, folder: Path, gpu: GpuSpec, advance: Advance) -> Fitted:
    """Simulate every value; `advance` is told the share that is done."""
    errors: dict[str, float] = {}
    judged: Sequence[str] = ()
    for number, value in enumerate(fit.values):

        def part(share: float, before: int = number) -> None:
            advance((before + share) / len(fit.values))

        curves = fit.simulate(folder, fit.places, gpu.with_overrides([f"{fit.key}={value}"]), part)
        counted = [c for c in curves if c.points and c.target is not None and c.name in fit.curves]
        errors[value] = fmean(_error(curve) for curve in counted)
        judged = [curve.name for curve in counted]
    return Fitted(fit, errors, min(errors, key=lambda value: errors[value]), tuple(judged))


def _error(curve: Curve) -> float:
    """Mean error of all points, which were chosen to be calibration points, in units of the target."""
    mean = curve.mean_error()
    assert mean is not None and curve.target
    return mean / curve.target


def _calibration(places: Collection[float], matters: Callable[[float], bool]) -> tuple[float, ...]:
    """The places that are not held out, and where the figure matters."""
    kept = [x for number, x in enumerate(sorted(places)) if number % HOLD_OUT != HOLD_OUT - 1]
    return tuple(x for x in kept if matters(x))


def _plain(value: str) -> str | float:
    """A number as a number, so that the GPU file has it so."""
    try:
        return float(value)
    except ValueError:
        return value
