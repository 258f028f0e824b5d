"""A read of one line: coalescer, near slice, fabric, home slice, memory.

Requests join every queue on their way at the cycle `now` of the access, the only time that never runs backward between
SMs: had a later chunk joined at its own, future, issue time, the server would idle until then and other SMs would wait
behind it. So waits on the way overlap, and the longest counts.
"""

from __future__ import annotations

from typing import Any

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l2.coalescer import entry_of, may_join, open_request
from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.ordered import leave_at_home, look_up
from gpusim.memory.l2.policies import NO_ALLOCATE
from gpusim.memory.l2.tags import POPCOUNT, probe
from gpusim.memory.l2.write import evict
from gpusim.memory.memory_side import memory_read
from gpusim.memory.servers import queue

L2_READ, L2_MISS, FABRIC_READ, FAR_HIT = int(C.L2_READ), int(C.L2_MISS), int(C.FABRIC_READ), int(C.FAR_HIT)


@njit
def _fetch(
    m: Any, near: int, line: int, tag: int, set_index: int, missing: int, hint: int, now: float, tally: Any
) -> tuple[float, float]:
    """Bring missing sectors to the near partition; returns (latency beyond an L2 hit's, longest wait in a queue)."""
    home = home_partition(m, line)
    slice_index = set_index % m.slices
    if home == near:
        return memory_read(m, line, home, slice_index, missing, now, tally)
    sectors = POPCOUNT[missing]
    tally[FABRIC_READ] += sectors
    latency = m.fabric_latency
    wait = queue(m.fabric_free, home, now, sectors * m.fabric_cycles)
    wait = max(wait, queue(m.slice_free, home * m.slices + slice_index, now, sectors * m.slice_cycles))
    row = home * m.sets + set_index
    held = probe(m.tags, row * m.ways, m.ways, tag) if m.cached else 0
    found = held & missing
    absent = missing & ~found
    tally[FAR_HIT] += POPCOUNT[found]
    if absent:
        extra, longer = memory_read(m, line, home, slice_index, absent, now, tally)
        latency += extra
        wait = max(wait, longer)
        if m.cached and m.home_depth >= 0 and hint != NO_ALLOCATE:
            victim = look_up(m, row, tag, absent, hint)[1] if held else leave_at_home(m, row, tag, absent, hint)
            evict(m, home, set_index, victim, now)
    return latency, wait


@njit
def read_line(
    m: Any,
    sm: int,
    line: int,
    tag: int,
    set_index: int,
    mask: int,
    hint: int,
    now: float,
    issue: float,
    merging: bool,
    tally: Any,
) -> float:
    """Read sectors `mask` of one line, sent at `issue`; returns when they leave the L2 for the SM."""
    partition = m.partition_of_sm[sm]
    entry = entry_of(m, sm, line)
    if merging and may_join(m, entry, line, mask, issue):
        m.merge_count[entry] += 1
        return m.merge_ready[entry]
    sectors = POPCOUNT[mask]
    tally[L2_READ] += sectors
    latency = m.l2_latency
    wait = queue(m.slice_free, partition * m.slices + set_index % m.slices, now, sectors * m.slice_cycles)
    present = 0
    if m.cached:
        present, victim = look_up(m, partition * m.sets + set_index, tag, mask, hint)
        if victim & 0xF0:
            evict(m, partition, set_index, victim, now)
    missing = mask & ~present
    if missing:
        tally[L2_MISS] += POPCOUNT[missing]
        extra, longer = _fetch(m, partition, line, tag, set_index, missing, hint, now, tally)
        latency += extra
        wait = max(wait, longer)
    ready = max(issue, now + wait) + latency
    if merging:
        open_request(m, entry, line, mask, issue, ready)
    return ready
