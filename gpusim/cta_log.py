"""A note of when and where each CTA of a simulated kernel ran, for those who ask for one."""

from __future__ import annotations

import numpy as np

from traces.cta_times import CtaTimes

__all__ = ["CtaLog"]


class CtaLog:
    """The CTAs of one kernel; times are SM cycles since the start of the run."""

    def __init__(self, ctas: int) -> None:
        self._sm = np.zeros(ctas, np.int64)
        self._start, self._end = np.zeros(ctas), np.zeros(ctas)

    def start(self, cta: int, sm: int, at: float) -> None:
        """CTA `cta` starts on `sm`, and has ended as well unless `end` is called."""
        self._sm[cta] = sm
        self._start[cta] = self._end[cta] = at

    def end(self, cta: int, at: float) -> None:
        """CTA `cta` has ended."""
        self._end[cta] = at

    def times(self, kernel: str, clock_hz: float) -> CtaTimes:
        """The log as times of `kernel`, whose SMs ran at `clock_hz` and have one clock."""
        first, ns = self._start.min(), 1e9 / clock_hz
        start_ns, end_ns = (self._start - first) * ns, (self._end - first) * ns
        return CtaTimes(kernel, self._sm, start_ns, end_ns, self._start, self._end)
