"""The binned timeline: fixed memory, bins that widen by themselves.

When time runs past the last bin, neighbouring bins are added together and each bin covers twice the time.
"""

from __future__ import annotations

from typing import Any

from gpusim.jit import njit

TENSOR_BUSY, VECTOR_BUSY, MEMORY_WAIT, L2_HIT_SECTORS, L2_LOOKUP_SECTORS = range(5)
"""Rows of the activity array (see `gpusim.memory.state.ACTIVITIES`)."""


@njit
def _fold(values: Any) -> None:
    """Halve the bins of a [rows, bins] array by adding neighbours."""
    bins = values.shape[1]
    for row in range(values.shape[0]):
        for b in range(bins // 2):
            values[row, b] = values[row, 2 * b] + values[row, 2 * b + 1]
        for b in range(bins // 2, bins):
            values[row, b] = 0.0


@njit
def bin_of(m: Any, t: float) -> int:
    """The bin of time `t`, widening all bins until it fits."""
    bins = m.activity.shape[1]
    b = int(t / m.bin_cycles[0])
    while b >= bins:
        m.bin_cycles[0] *= 2.0
        _fold(m.activity)
        for level in range(m.timeline.shape[0]):
            _fold(m.timeline[level])
        b = int(t / m.bin_cycles[0])
        m.touched_bins[0] = bins // 2
    if b >= m.touched_bins[0]:
        m.touched_bins[0] = b + 1
    return b


@njit
def record_bytes(m: Any, level: int, tensor: int, start: float, end: float, count: int) -> None:
    """Spread `count` bytes of `tensor` at `level` evenly over [start, end]."""
    if count == 0:
        return
    last = bin_of(m, end)
    first = bin_of(m, start)
    if first == last:
        m.timeline[level, tensor, first] += count
        return
    width = m.bin_cycles[0]
    rate = count / (end - start)
    inside = 0.0
    for b in range(first, last):
        share = rate * ((b + 1) * width - max(start, b * width))
        m.timeline[level, tensor, b] += share
        inside += share
    m.timeline[level, tensor, last] += max(0.0, count - inside)


@njit
def record_hits(m: Any, t: float, hits: int, lookups: int) -> None:
    """Add L2 lookups and hits, in sectors."""
    b = bin_of(m, t)
    m.activity[L2_HIT_SECTORS, b] += hits
    m.activity[L2_LOOKUP_SECTORS, b] += lookups


@njit
def record_activity(m: Any, row: int, start: float, end: float) -> None:
    """Spread the cycles of [start, end) over the bins they fall into."""
    if end <= start:
        return
    last = bin_of(m, end)
    first = bin_of(m, start)
    width = m.bin_cycles[0]
    if first == last:
        m.activity[row, first] += end - start
        return
    m.activity[row, first] += (first + 1) * width - start
    for b in range(first + 1, last):
        m.activity[row, b] += width
    m.activity[row, last] += end - last * width
