"""A read of one line: coalescer, near slice, fabric, home slice, memory.

Requests join every queue on their way at the cycle `now` of the access, the only time that never runs backward between
SMs: had a later chunk joined at its own, future, issue time, the server would idle until then and other SMs would wait
behind it. So waits on the way overlap, and the longest counts.
"""

from __future__ import annotations

from typing import Any

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.in_flight import SLOTS, slot_of
from gpusim.memory.l2.ordered import look_up, pass_home
from gpusim.memory.l2.tags import POPCOUNT, insert_at, is_line, probe, touch
from gpusim.memory.l2.write import evict
from gpusim.memory.memory_side import memory_read
from gpusim.memory.servers import queue

L2_READ, L2_MISS, FABRIC_READ, FAR_HIT = int(C.L2_READ), int(C.L2_MISS), int(C.FABRIC_READ), int(C.FAR_HIT)


@njit
def _fill(m: Any, partition: int, line: int, ready: float) -> None:
    """Note when a line that is on its way will leave a partition for the SM; whoever asks before then waits for it."""
    fill = partition * SLOTS + slot_of(line)
    m.fill_line[fill] = line
    m.fill_ready[fill] = ready


@njit
def _fetch(
    m: Any,
    near: int,
    line: int,
    tag: int,
    set_index: int,
    missing: int,
    hint: int | None,
    now: float,
    issue: float,
    wait: float,
    tally: Any,
) -> float:
    """Bring missing sectors to the near partition; returns when they leave it for the SM.

    `wait` is the longest wait in a queue so far.
    """
    home = home_partition(m, line)
    slice_index = set_index % m.slices
    latency = m.l2_latency
    if home == near:
        extra, longer = memory_read(m, line, home, slice_index, missing, now, tally)
        return max(issue, now + max(wait, longer)) + latency + extra
    sectors = POPCOUNT[missing]
    tally[FABRIC_READ] += sectors
    latency += m.fabric_latency
    wait = max(wait, queue(m.fabric_free, home, now, sectors * m.fabric_cycles))
    wait = max(wait, queue(m.slice_free, home * m.slices + slice_index, now, sectors * m.slice_cycles))
    row = home * m.sets + set_index
    held = probe(m.tags, row * m.ways, m.ways, tag) if m.cached else 0
    found = held & missing
    absent = missing & ~found
    tally[FAR_HIT] += POPCOUNT[found]
    if not absent:
        ready = max(issue, now + wait) + latency
        fill = home * SLOTS + slot_of(line)
        return max(ready, m.fill_ready[fill] + m.fabric_latency) if m.fill_line[fill] == line else ready
    extra, longer = memory_read(m, line, home, slice_index, absent, now, tally)
    ready = max(issue, now + max(wait, longer)) + latency + extra
    if m.cached and m.home_depth >= 0:
        _fill(m, home, line, ready - m.fabric_latency)
        if hint is None:
            base = row * m.ways
            if held:
                victim = touch(m.tags, base, m.ways, tag, absent)[1]
            else:
                victim = insert_at(m.tags, base, m.ways, m.home_depth, tag, absent)
        else:
            victim = pass_home(m, row, tag, absent, held, hint)
        if is_line(victim):
            evict(m, home, set_index, victim, now)
    return ready


@njit
def read_line(
    m: Any,
    sm: int,
    line: int,
    tag: int,
    set_index: int,
    mask: int,
    hint: int | None,
    now: float,
    issue: float,
    merging: bool,
    tally: Any,
) -> float:
    """Read sectors `mask` of one line, sent at `issue`; returns when they leave the L2 for the SM.

    The coalescer's window differs from line to line, as slices are more or less busy: 0.57 to 1.43 of its mean
    (measured: pairs of SMs merge all requests 25 cycles apart, 80 % at 50, none at 100).

    A `hint` of None says that sets are kept in plain LRU order and the load has no hint. That case, nearly every line
    there is, is compiled apart, without a trace of the policies.
    """
    partition = m.partition_of_sm[sm]
    window = m.merge_window * (0.57 + 0.86 * ((line * 2654435761) & 0xFFFF) / 65536.0)
    entry = m.merge_group_of_sm[sm] * SLOTS + slot_of(line)
    if (
        merging
        and m.merge_line[entry] == line
        and m.merge_mask[entry] & mask == mask
        and m.merge_count[entry] < m.merge_width
        and m.merge_start[entry] - window <= issue <= m.merge_ready[entry] - m.l2_latency + window
    ):
        m.merge_count[entry] += 1
        return m.merge_ready[entry]
    sectors = POPCOUNT[mask]
    tally[L2_READ] += sectors
    wait = queue(m.slice_free, partition * m.slices + set_index % m.slices, now, sectors * m.slice_cycles)
    present = 0
    if m.cached:
        row = partition * m.sets + set_index
        if hint is None:
            present, victim = touch(m.tags, row * m.ways, m.ways, tag, mask)
        else:
            present, victim = look_up(m, row, tag, mask, hint)
        if is_line(victim):
            evict(m, partition, set_index, victim, now)
    missing = mask & ~present
    if missing:
        tally[L2_MISS] += POPCOUNT[missing]
        ready = _fetch(m, partition, line, tag, set_index, missing, hint, now, issue, wait, tally)
        _fill(m, partition, line, ready)
    else:
        ready = max(issue, now + wait) + m.l2_latency
        fill = partition * SLOTS + slot_of(line)
        if m.fill_line[fill] == line and m.fill_ready[fill] > ready:
            ready = m.fill_ready[fill]
    if merging:
        m.merge_line[entry] = line
        m.merge_mask[entry] = mask
        m.merge_count[entry] = 1
        m.merge_start[entry] = issue
        m.merge_ready[entry] = ready
    return ready
