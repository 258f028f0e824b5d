"""A write of one line, under each write policy.

`write_back` takes the data in the writer's partition and at home, where it stays dirty until it is evicted or the
dirty cap is reached. `write_through` does the same and sends it on to memory at once, so nothing is ever dirty.
`write_around` sends it to memory, and updates lines that are there but brings in none. Copies elsewhere are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.ordered import look_up
from gpusim.memory.l2.policies import NORMAL, WRITE_AROUND, WRITE_BACK
from gpusim.memory.l2.slice_hash import line_at
from gpusim.memory.l2.tags import CLEAN, DIRTY, POPCOUNT, as_int, find, invalidate, is_line, oldest_dirty, touch
from gpusim.memory.memory_side import LEVEL_DRAM_WRITE, LINES_PER_PAGE_SHIFT, memory_write
from gpusim.memory.servers import queue
from gpusim.memory.timeline import record_bytes

L2_WRITE, FABRIC_WRITE, DRAM_WRITE = int(C.L2_WRITE), int(C.FABRIC_WRITE), int(C.DRAM_WRITE)


@njit
def _write_back(m: Any, partition: int, set_index: int, word: int, sectors_mask: int, t: float) -> float:
    """Write dirty sectors of a tag word to memory; returns the delay its queue imposes."""
    line = line_at(word >> 8, set_index, m.sets, m.slice_hash)
    sectors = POPCOUNT[sectors_mask]
    tensor = m.tensor_of_page[line >> LINES_PER_PAGE_SHIFT]
    m.dirty_sectors[partition] -= sectors
    written, wait = memory_write(m, line, partition, set_index % m.slices, sectors_mask, t)
    m.counters[tensor, DRAM_WRITE] += written
    record_bytes(m, LEVEL_DRAM_WRITE, tensor, t + wait, t + wait, written * 32)
    return wait


@njit
def _clean(m: Any, partition: int, set_index: int, at: int, t: float) -> float:
    """Write the dirty sectors of tag word `at` to memory and keep the line; returns the delay its queue imposes."""
    word = m.tags[at]
    m.tags[at] = word & CLEAN
    return _write_back(m, partition, set_index, as_int(word), (as_int(word) >> 4) & 15, t)


@njit
def evict(m: Any, partition: int, set_index: int, victim: int, t: float) -> float:
    """Dispose of what left a full set, and clean the lines that are the next to go; returns the wait this imposes.

    Dirty lines lie in their home partition only, so they are written from there.
    """
    wait = 0.0
    dirty = (victim >> 4) & 15
    if dirty:
        wait = _write_back(m, partition, set_index, victim, dirty, t)
    end = (partition * m.sets + set_index + 1) * m.ways
    for at in range(end - m.clean_ways, end):
        if m.tags[at] & DIRTY:
            wait = max(wait, _clean(m, partition, set_index, at, t))
    return wait


@njit
def take(m: Any, partition: int, tag: int, set_index: int, mask: int, now: float) -> tuple[int, float]:
    """Have a partition hold written sectors; returns (those that it held before, the wait that a victim imposes)."""
    row = partition * m.sets + set_index
    if m.write_policy == WRITE_AROUND:
        place = find(m.tags, row * m.ways, m.ways, tag)
        if place < 0:
            return 0, 0.0
        word = m.tags[row * m.ways + place]
        m.tags[row * m.ways + place] = word | np.uint32(mask)
        return as_int(word) & mask, 0.0
    base = row * m.ways
    held, victim = touch(m.tags, base, m.ways, tag, mask) if m.plain_lru else look_up(m, row, tag, mask, NORMAL)
    return held, evict(m, partition, set_index, victim, now) if is_line(victim) else 0.0


@njit
def make_dirty(m: Any, home: int, tag: int, set_index: int, mask: int, now: float) -> float:
    """Mark sectors dirty at home, and keep to the cap; returns the wait that a write-back imposes."""
    base = (home * m.sets + set_index) * m.ways
    at = base if m.plain_lru else base + find(m.tags, base, m.ways, tag)
    word = m.tags[at]
    m.dirty_sectors[home] += POPCOUNT[mask & ~(as_int(word) >> 4)]
    m.tags[at] = word | np.uint32(mask << 4)
    if m.dirty_sectors[home] <= m.dirty_cap_sectors:
        return 0.0
    return _clean(m, home, set_index, oldest_dirty(m.tags, base, m.ways), now)


@njit
def write_line(m: Any, partition: int, line: int, tag: int, set_index: int, mask: int, now: float, tally: Any) -> float:
    """Write sectors `mask` of one line; returns the wait until the L2 has taken them."""
    sectors = POPCOUNT[mask]
    tally[L2_WRITE] += sectors
    slice_index = set_index % m.slices
    home = home_partition(m, line)
    wait = queue(m.slice_free, partition * m.slices + slice_index, now, sectors * m.slice_cycles)
    if home != partition:
        tally[FABRIC_WRITE] += sectors
        wait = max(wait, queue(m.fabric_free, partition, now, sectors * m.fabric_cycles))
        if m.cached:
            wait = max(wait, take(m, partition, tag, set_index, mask, now)[1])
    if m.cached:
        for other in range(m.partitions):
            if other != home and other != partition:
                invalidate(m.tags, (other * m.sets + set_index) * m.ways, m.ways, tag, mask)
    if not m.cached or m.write_policy != WRITE_BACK:
        written, longer = memory_write(m, line, home, slice_index, mask, now)
        tally[DRAM_WRITE] += written
        wait = max(wait, longer)
    if m.cached:
        wait = max(wait, take(m, home, tag, set_index, mask, now)[1])
        if m.write_policy == WRITE_BACK:
            wait = max(wait, make_dirty(m, home, tag, set_index, mask, now))
    return wait


@njit
def clean_oldest(m: Any, partition: int, most: int, now: float) -> None:
    """Clean a partition's lines, the next to go of every set first, until no more than `most` sectors are dirty."""
    for place in range(m.ways - 1, -1, -1):
        for set_index in range(m.sets):
            if m.dirty_sectors[partition] <= most:
                return
            at = (partition * m.sets + set_index) * m.ways + place
            if m.tags[at] & DIRTY:
                _clean(m, partition, set_index, at, now)
