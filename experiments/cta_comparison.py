"""CTAs of the same launches, measured and simulated: which ran where, when and for how long, as plain data.

The time of a launch consists of what the places of its SMs spend on waiting for a first CTA, running CTAs, the gaps
between them and an idle tail (`traces.cta_times`). Which of these differs most says what to look at:

- `starting`, skew: how far apart the first CTAs start.
- `running`, duration: what a CTA takes.
- `between`, turnover: from a CTA's end to the start of the next.
- `ending`, order: which CTAs run last, and on which SMs.

If an SM holds another number of CTAs, the other parts cannot be compared, and it is `occupancy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traces.cta_times import CtaTimes

__all__ = ["PARTS", "compare_ctas"]

PARTS: Mapping[str, str] = {"starting": "skew", "running": "duration", "between": "turnover", "ending": "order"}
"""Part of a launch's time → what to look at if it differs."""
PERCENTILES = (5, 50, 95)
NOTABLE = 0.01
"""Of the measured time of the launch: the least difference that points to anything."""


def compare_ctas(measured: Sequence[CtaTimes], simulated: Sequence[CtaTimes]) -> list[dict[str, Any]]:
    """A dictionary per launch: `name`, `ctas`, `same_sm` and `same_sm_first_wave` (shares of the CTAs, 0 to 1; the wave
    is the measured one), `points_to` (a value of `PARTS`, `occupancy`, or None), and fields of `measured`, `simulated`:

    - `resident`: CTAs at a time on an SM; `clock_ghz`.
    - `span_cycles`, first start to last end, and its parts `starting_cycles`, … .
    - `duration_p5_cycles`, …: of CTAs.
    - `first_starts_cycles`, `first_ends_cycles`: how far apart the first wave starts (all of it) and ends (5th to 95th
      percentile).

    Times are turned into cycles by the SM clock of their own side.

    Raises:
        ValueError: the launches are not the same ones.
    """
    ours, theirs = ([(t.kernel, t.ctas) for t in side] for side in (simulated, measured))
    if ours != theirs:
        raise ValueError(f"measured are {_listed(theirs)}, but simulated {_listed(ours)}")
    return [_compare(m, s) for m, s in zip(measured, simulated, strict=True)]


def _listed(launches: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} of {ctas} CTAs" for name, ctas in launches)


def _compare(measured: CtaTimes, simulated: CtaTimes) -> dict[str, Any]:
    sides = _fields(measured), _fields(simulated)
    fields = {name: dict(zip(("measured", "simulated"), pair, strict=True)) for name, pair in _paired(*sides)}
    same = measured.sm == simulated.sm
    return {
        "name": measured.kernel,
        "ctas": measured.ctas,
        "same_sm": float(same.mean()),
        "same_sm_first_wave": float(same[measured.first_wave].mean()),
        "points_to": _points_to(*sides),
        **fields,
    }


def _paired(measured: Mapping[str, float], simulated: Mapping[str, float]) -> list[tuple[str, tuple[float, float]]]:
    return [(name, (value, simulated[name])) for name, value in measured.items()]


def _fields(times: CtaTimes) -> dict[str, float]:
    ghz, first = times.clock_ghz, times.first_wave
    low, middle, high = np.percentile(times.duration_cycles, PERCENTILES)
    first_ends = np.percentile(times.end_ns[first], (PERCENTILES[0], PERCENTILES[-1]))
    return {
        "resident": times.resident,
        "clock_ghz": ghz,
        "span_cycles": times.span_ns * ghz,
        **{f"{part}_cycles": getattr(times.parts, part) * ghz for part in PARTS},
        "duration_p5_cycles": float(low),
        "duration_p50_cycles": float(middle),
        "duration_p95_cycles": float(high),
        "first_starts_cycles": float(np.ptp(times.start_ns[first])) * ghz,
        "first_ends_cycles": float(np.ptp(first_ends)) * ghz,
    }


def _points_to(measured: Mapping[str, float], simulated: Mapping[str, float]) -> str | None:
    if measured["resident"] != simulated["resident"]:
        return "occupancy"
    differences = {part: abs(simulated[f"{part}_cycles"] - measured[f"{part}_cycles"]) for part in PARTS}
    largest = max(differences, key=lambda part: differences[part])
    return PARTS[largest] if differences[largest] >= NOTABLE * measured["span_cycles"] else None
