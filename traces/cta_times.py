"""When and where each CTA of a kernel launch ran, measured or simulated, and what that says of the launch.

A *place* is room for one CTA on an SM. The CTAs that follow each other in a place are a chain from the launch's start
to its end: in every place, the launch takes the wait for a first CTA, the CTAs, the gaps between them, an idle tail.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["CtaTimes", "Parts"]


@dataclass(frozen=True, eq=False)
class CtaTimes:
    """The CTAs of one launch; arrays are by CTA number.

    Attributes:
        kernel: name of the launch.
        sm: number of the SM that it ran on.
        start_ns, end_ns: time since the launch's first CTA started, by one timer for all SMs.
        start_clock, end_clock: SM cycles by the SM's own clock, whose zero may be another on every SM.

    Raises:
        ValueError: there is no CTA, or one that ends before it starts.
    """

    kernel: str
    sm: NDArray[np.int64] = field(repr=False)
    start_ns: NDArray[np.float64] = field(repr=False)
    end_ns: NDArray[np.float64] = field(repr=False)
    start_clock: NDArray[np.float64] = field(repr=False)
    end_clock: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        if not len(self.sm):
            raise ValueError(f"kernel {self.kernel} has no CTA")
        wrong = np.flatnonzero((self.end_ns < self.start_ns) | (self.end_clock < self.start_clock))
        if len(wrong):
            raise ValueError(f"CTA {wrong[0]} of kernel {self.kernel} ends before it starts")

    @property
    def ctas(self) -> int:
        """CTAs of the launch."""
        return len(self.sm)

    @property
    def duration_cycles(self) -> NDArray[np.float64]:
        """How long each CTA ran."""
        return self.end_clock - self.start_clock

    @property
    def span_ns(self) -> float:
        """From the first CTA's start to the last one's end."""
        return float(self.end_ns.max())

    @property
    def clock_ghz(self) -> float:
        """SM clock while CTAs ran: cycles of all of them over their time; NaN if that is too short to be seen."""
        time_ns = float((self.end_ns - self.start_ns).sum())
        return float(self.duration_cycles.sum()) / time_ns if time_ns else float("nan")

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Place of each CTA on its SM, from 0: the one that has been free for the longest when it starts."""
        places = np.zeros(self.ctas, np.int64)
        free: dict[int, list[tuple[float, int]]] = {}  # by SM, a heap of (end of its latest CTA, place)
        for cta in np.lexsort((self.end_clock, self.start_clock)):
            heap, end = free.setdefault(int(self.sm[cta]), []), float(self.end_clock[cta])
            if heap and heap[0][0] <= self.start_clock[cta]:
                places[cta] = heap[0][1]
                heapq.heapreplace(heap, (end, heap[0][1]))
            else:
                places[cta] = len(heap)
                heapq.heappush(heap, (end, len(heap)))
        return places

    @property
    def resident(self) -> int:
        """Most CTAs at a time on an SM."""
        return int(self.place.max()) + 1

    @cached_property
    def first_wave(self) -> NDArray[np.bool_]:
        """Which CTAs are the first in their place."""
        first = np.zeros(self.ctas, np.bool_)
        first[self._chains[0]] = True
        return first

    @property
    def parts(self) -> Parts:
        """What the time of the launch consists of, as means over the places that had a CTA."""
        first, last, number = self._chains
        starting, ending = float(self.start_ns[first].mean()), float((self.span_ns - self.end_ns[last]).mean())
        running = float((self.end_ns - self.start_ns).sum()) / number
        between = max(0.0, self.span_ns - starting - running - ending)  # but for rounding, it is what is left
        return Parts(starting, running, between, ending)

    def ctas_per_sm(self, sm_count: int) -> NDArray[np.int64]:
        """CTAs that each of `sm_count` SMs ran."""
        return np.bincount(self.sm, minlength=sm_count)

    @cached_property
    def _chains(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """(first CTA of each place, last CTA of each place, places)."""
        chain = self.sm * self.resident + self.place
        order = np.lexsort((self.end_clock, self.start_clock, chain))
        bounds = np.flatnonzero(np.diff(chain[order], prepend=-1))
        return order[bounds], order[np.append(bounds[1:], self.ctas) - 1], len(bounds)


@dataclass(frozen=True, slots=True)
class Parts:
    """Time of a launch, ns: mean over places of what comes before their first CTA, the CTAs, the gaps between them, and
    what is left after their last.
    """

    starting: float
    running: float
    between: float
    ending: float
