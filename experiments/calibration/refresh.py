"""How long memory refreshes its banks, and how often, from how long single reads take.

A read finds its bank in a refresh as often as refreshes take of the time, and waits for anything up to a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Refresh", "refresh_of"]

NEAR, FAR = 0.22, 0.65
"""Shares of all reads that are faster than a typical one from the near and from the far partition."""
LAST = 0.99
"""Slower ones have waited for something else besides."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Cycles that a refresh keeps a bank shut, and the share of the time that one does."""

    cycles: float
    share: float

    @property
    def interval_cycles(self) -> float:
        """From a bank's refresh to its next."""
        return self.cycles / self.share

    @property
    def mean_wait_cycles(self) -> float:
        """What reads wait for it, those that do not wait included."""
        return self.share * self.cycles / 2


def refresh_of(reads: Mapping[float, float], bin_cycles: float) -> Refresh | None:
    """The refresh with which waits would be most like those measured; None where none waited.

    Args:
        reads: cycles (lower edge of a bin of `bin_cycles`) → reads that took so long.
    """
    edges = np.array(sorted(reads)) + bin_cycles
    counted = np.cumsum([reads[edge] for edge in sorted(reads)]) / sum(reads.values())

    def quantile(share: float) -> float:
        return float(np.interp(share, counted, edges))

    near, far = quantile(NEAR), quantile(FAR)
    later = np.linspace(far + (far - near) / 2, quantile(LAST), 60)  # all of these have waited
    longer = 1 - np.interp(later, edges, counted)  # share of reads that took longer than that
    best, least = None, np.inf
    for cycles in np.arange(later[0] - near, 2 * (later[-1] - near), 5.0):
        waiting = sum(0.5 * np.clip((start + cycles - later) / cycles, 0, 1) for start in (near, far))
        share = float(waiting @ longer / (waiting @ waiting)) if waiting.any() else 0.0
        error = float(np.sum((longer - share * waiting) ** 2))
        if share > 0 and error < least:
            best, least = Refresh(float(cycles), share), error
    return best
