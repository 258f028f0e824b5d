"""What the stamps of a run say: how long CTAs take from one moment to the next.

`include/cta_record.cuh` says how kernels put them. A stamp costs a warp about 20 cycles, and keeps the compiler from
moving work across it.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.cta_record import MOMENTS, Recorded

__all__ = ["Interval", "intervals", "stamps_table", "stamps_text"]

Interval = tuple[str, str, NDArray[np.float64]]
"""(moment, next moment, cycles between them, one number for every time that a CTA went from one to the other)."""


def intervals(stamps: NDArray[np.float64], durations: NDArray[np.float64]) -> Iterator[Interval]:
    """Each pair of moments that follow each other, in the order in which CTAs first come to them.

    Moments of a first step are apart from those of later ones: `arrived 0`, `arrived`.

    Args:
        stamps: [CTA, step, moment], cycles since the CTA's start, NaN where there is none.
        durations: [CTA], cycles.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    order: dict[tuple[str, str], float] = {}
    steps, moments = stamps.shape[1:]
    names = [MOMENTS[m] + (" 0" if step == 0 else "") for step in range(steps) for m in range(moments)]
    for cta, duration in zip(stamps.reshape(len(stamps), -1), durations, strict=True):
        taken = np.flatnonzero(~np.isnan(cta))
        taken = taken[np.argsort(cta[taken], kind="stable")]
        times = [0.0, *cta[taken], duration]
        labels = ["start", *(names[i] for i in taken), "end"]
        for before, after, start, end in zip(labels, labels[1:], times, times[1:], strict=False):
            found[before, after].append(end - start)
            order[before, after] = min(start, order.get((before, after), np.inf))
    for pair in sorted(found, key=lambda pair: order[pair]):
        yield *pair, np.array(found[pair])


def stamps_table(recorded: Recorded) -> str:
    """For people: per kernel, how often a CTA goes from one moment to the next, and how long that takes."""
    lines = []
    for times, stamps in zip(recorded.launches, recorded.stamps, strict=True):
        lines.append(f"{times.kernel}: cycles from one stamp to the next      times a CTA   median       5 %      95 %")
        for before, after, cycles in intervals(stamps, times.duration_cycles):
            low, middle, high = np.percentile(cycles, (5, 50, 95))
            often = len(cycles) / times.ctas
            lines.append(f"  {before + ' → ' + after:45} {often:12.1f} {middle:10,.0f} {low:10,.0f} {high:10,.0f}")
    return "\n".join(lines) + "\n"


def stamps_text(recorded: Recorded, provenance: dict[str, str]) -> str:
    """A CSV: a row per step of a CTA, a column per moment, cycles since the CTA started, empty without a stamp."""
    text = io.StringIO()
    write_facts(text, provenance)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("kernel", "launch", "cta", "sm", "step", *MOMENTS))
    for number, (times, stamps) in enumerate(zip(recorded.launches, recorded.stamps, strict=True)):
        for cta, step in np.argwhere(~np.isnan(stamps).all(axis=2)):
            cycles = ("" if np.isnan(c) else f"{c:.0f}" for c in stamps[cta, step])
            table.writerow((times.kernel, number, cta, times.sm[cta], step, *cycles))
    return text.getvalue()
