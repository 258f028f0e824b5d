"""A tile access: every line of it through coalescer, near slice, fabric, home slice and DRAM.

`read_tile` and `write_tile` are the only entries. Both walk the tile in chunks of 4 KiB (a chunk is what an SM may have
outstanding) and count as they go.

A server (slice, fabric, DRAM bus) is the time until it is free. Requests join every queue on their way at the cycle
`now` of the access, the only time that never runs backward between SMs: had a later chunk joined at its own, future,
issue time, the server would idle until then and other SMs would wait behind it. So waits on the way overlap, and the
longest counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.hbm.reserve import dram_read, dram_write
from gpusim.memory.l2 import (
    CLEAN,
    as_int,
    home_partition,
    insert_at,
    invalidate,
    line_at,
    oldest_dirty,
    place,
    probe,
    touch,
)
from gpusim.memory.state import CHUNK_BYTES, LINE_BYTES, MERGE_SLOTS
from gpusim.memory.timeline import record_bytes, record_hits
from traces.tensor import ALIGNMENT_BYTES

LINES_PER_PAGE_SHIFT = (ALIGNMENT_BYTES // 128).bit_length() - 1
CHUNK_LINES = CHUNK_BYTES // LINE_BYTES
POPCOUNT = np.array([bin(b).count("1") for b in range(16)], np.int64)

SM_READ, SM_WRITE, L2_READ, L2_WRITE = int(C.SM_READ), int(C.SM_WRITE), int(C.L2_READ), int(C.L2_WRITE)
L2_HIT, L2_MISS, FABRIC_READ, FABRIC_WRITE = int(C.L2_HIT), int(C.L2_MISS), int(C.FABRIC_READ), int(C.FABRIC_WRITE)
DRAM_READ, DRAM_WRITE, SHARED_WRITE, FAR_HIT = int(C.DRAM_READ), int(C.DRAM_WRITE), int(C.SHARED_WRITE), int(C.FAR_HIT)
LEVEL_DRAM_READ, LEVEL_DRAM_WRITE, LEVEL_FABRIC, LEVEL_L2_READ, LEVEL_L2_WRITE = range(5)


@njit
def sectors_of(address: int, runs: int, run_bytes: int, pitch: int) -> int:
    """Sectors that `runs` runs of bytes touch (a sector two runs share counts twice, as two requests)."""
    total = 0
    for r in range(runs):
        start = address + r * pitch
        total += (start + run_bytes - 1) // 32 - start // 32 + 1
    return total


@njit
def _write_back(m: Any, partition: int, set_index: int, word: int, sectors_mask: int, t: float) -> float:
    """Write dirty sectors of a tag word to DRAM; returns the delay its queue imposes."""
    line = line_at(word >> 8, set_index, m.sets)
    sectors = POPCOUNT[sectors_mask]
    tensor = m.tensor_of_page[line >> LINES_PER_PAGE_SHIFT]
    m.dirty_sectors[partition] -= sectors
    m.counters[tensor, DRAM_WRITE] += sectors
    wait = dram_write(m, line, partition, set_index % m.slices, sectors, t)
    record_bytes(m, LEVEL_DRAM_WRITE, tensor, t + wait, t + wait, sectors * 32)
    return wait


@njit
def _evict(m: Any, partition: int, set_index: int, victim: int, t: float) -> float:
    """Dispose of a victim; dirty lines lie in their home partition only, so it is written from there."""
    dirty = (victim >> 4) & 15
    if dirty == 0:
        return 0.0
    return _write_back(m, partition, set_index, victim, dirty, t)


@njit
def _queue(free: Any, index: int, t: float, work: float) -> float:
    """Enter a server's queue at `t` with `work` cycles; returns the wait before service."""
    start = free[index]
    if start < t:
        start = t
    free[index] = start + work
    return start - t


@njit
def _fetch(
    m: Any, near: int, line: int, tag: int, set_index: int, missing: int, now: float, tally: Any
) -> tuple[float, float]:
    """Bring missing sectors to the near partition; returns (latency beyond an L2 hit's, longest wait in a queue)."""
    sectors = POPCOUNT[missing]
    home = home_partition(m, line)
    slice_index = set_index % m.slices
    if home == near:
        tally[DRAM_READ] += sectors
        return m.dram_latency, dram_read(m, line, home, slice_index, sectors, now)
    tally[FABRIC_READ] += sectors
    latency = m.fabric_latency
    wait = _queue(m.fabric_free, home, now, sectors * m.fabric_cycles)
    wait = max(wait, _queue(m.slice_free, home * m.slices + slice_index, now, sectors * m.slice_cycles))
    base = (home * m.sets + set_index) * m.ways
    held = probe(m.tags, base, m.ways, tag) if m.cached else 0
    found = held & missing
    absent = missing & ~found
    tally[FAR_HIT] += POPCOUNT[found]
    if absent:
        count = POPCOUNT[absent]
        tally[DRAM_READ] += count
        latency += m.dram_latency
        wait = max(wait, dram_read(m, line, home, slice_index, count, now))
        if m.cached and m.home_depth >= 0:
            if held:
                victim = touch(m.tags, base, m.ways, tag, absent)[1]
            else:
                victim = insert_at(m.tags, base, m.ways, m.home_depth, tag, absent)
            _evict(m, home, set_index, victim, now)
    return latency, wait


@njit
def _read_line(
    m: Any, sm: int, line: int, tag: int, set_index: int, mask: int, now: float, issue: float, merging: bool, tally: Any
) -> float:
    """Read sectors `mask` of one line, sent at `issue`; returns when they leave the L2 for the SM.

    The window differs from line to line, as slices are more or less busy: 0.57 to 1.43 of its mean (measured: pairs of
    SMs merge all requests 25 cycles apart, 80 % at 50, none at 100). A merge group's coalescer keeps a request open
    while the L2 works on it: for the window after a hit, and for as long as the miss and the queues before it take on
    top.
    """
    sectors = POPCOUNT[mask]
    partition = m.partition_of_sm[sm]
    window = m.merge_window * (0.57 + 0.86 * ((line * 2654435761) & 0xFFFF) / 65536.0)
    entry = m.merge_group_of_sm[sm] * MERGE_SLOTS + (line & (MERGE_SLOTS - 1))
    if (
        merging
        and m.merge_line[entry] == line
        and m.merge_mask[entry] & mask == mask
        and m.merge_count[entry] < m.merge_width
        and m.merge_start[entry] - window <= issue <= m.merge_ready[entry] - m.l2_latency + window
    ):
        m.merge_count[entry] += 1
        return m.merge_ready[entry]
    tally[L2_READ] += sectors
    latency = m.l2_latency
    wait = _queue(m.slice_free, partition * m.slices + set_index % m.slices, now, sectors * m.slice_cycles)
    present = 0
    if m.cached:
        present, victim = touch(m.tags, (partition * m.sets + set_index) * m.ways, m.ways, tag, mask)
        if victim & 0xF0:
            _evict(m, partition, set_index, victim, now)
    missing = mask & ~present
    if missing:
        tally[L2_MISS] += POPCOUNT[missing]
        extra, longer = _fetch(m, partition, line, tag, set_index, missing, now, tally)
        latency += extra
        wait = max(wait, longer)
    ready = max(issue, now + wait) + latency
    if merging:
        m.merge_line[entry] = line
        m.merge_mask[entry] = mask
        m.merge_count[entry] = 1
        m.merge_start[entry] = issue
        m.merge_ready[entry] = ready
    return ready


@njit
def _write_line(
    m: Any, partition: int, line: int, tag: int, set_index: int, mask: int, now: float, tally: Any
) -> float:
    """Write sectors `mask` of one line; returns the wait until the L2 has taken them."""
    sectors = POPCOUNT[mask]
    tally[L2_WRITE] += sectors
    slice_index = set_index % m.slices
    home = home_partition(m, line)
    wait = _queue(m.slice_free, partition * m.slices + slice_index, now, sectors * m.slice_cycles)
    if home != partition:
        tally[FABRIC_WRITE] += sectors
        wait = max(wait, _queue(m.fabric_free, home, now, sectors * m.fabric_cycles))
        if m.cached:
            victim = touch(m.tags, (partition * m.sets + set_index) * m.ways, m.ways, tag, mask)[1]
            if victim & 0xF0:
                wait = max(wait, _evict(m, partition, set_index, victim, now))
    if m.cached:  # copies elsewhere are stale from now on
        for other in range(m.partitions):
            if other != home and other != partition:
                invalidate(m.tags, (other * m.sets + set_index) * m.ways, m.ways, tag, mask)
    if not m.cached or m.write_through:
        tally[DRAM_WRITE] += sectors
        wait = max(wait, dram_write(m, line, home, slice_index, sectors, now))
        if not m.cached:
            return wait
    base = (home * m.sets + set_index) * m.ways
    victim = touch(m.tags, base, m.ways, tag, mask)[1]
    if victim & 0xF0:
        wait = max(wait, _evict(m, home, set_index, victim, now))
    if m.write_through:
        return wait
    word = m.tags[base]
    m.dirty_sectors[home] += sectors - POPCOUNT[(as_int(word) >> 4) & mask]
    m.tags[base] = word | np.uint32(mask << 4)
    if m.dirty_sectors[home] > m.dirty_cap_sectors:
        oldest = oldest_dirty(m.tags, base, m.ways)
        word = m.tags[oldest]
        wait = max(wait, _write_back(m, home, set_index, as_int(word), (as_int(word) >> 4) & 15, now))
        m.tags[oldest] = word & CLEAN
    return wait


@njit
def _walk(
    m: Any,
    sm: int,
    address: int,
    runs: int,
    run_bytes: int,
    pitch: int,
    now: float,
    tally: Any,
    writing: bool,
    merging: bool,
) -> tuple[float, float]:
    """Access runs of bytes line by line, keeping no more than the SM's limit outstanding.

    Every `CHUNK_LINES` lines make a chunk. A chunk is issued when the one `inflight_slots` before it is back.

    Returns:
        (when the last data is there or the last write accepted, when the last chunk was issued).
    """
    partition = m.partition_of_sm[sm]
    ring = sm * m.inflight_slots
    slot = m.inflight_next[sm]
    issue = max(now, m.inflight[ring + slot])
    done = issue
    worst = now
    in_chunk = 0
    for r in range(runs):
        start = address + r * pitch
        last_byte = start + run_bytes - 1
        first_line, last_line = start >> 7, last_byte >> 7
        line = first_line
        tag, set_index = place(line, m.sets)
        left_in_tag = m.sets - (line - tag * m.sets)
        while line <= last_line:
            if in_chunk == CHUNK_LINES:
                m.inflight[ring + slot] = done
                slot = slot + 1 if slot + 1 < m.inflight_slots else 0
                issue = max(issue, m.inflight[ring + slot])
                worst = max(worst, done)
                done = issue
                in_chunk = 0
            in_chunk += 1
            mask = 15
            if line == first_line:
                mask = (mask << ((start >> 5) & 3)) & 15
            if line == last_line:
                mask &= 15 >> (3 - ((last_byte >> 5) & 3))
            if writing:
                ready = max(issue, now + _write_line(m, partition, line, tag, set_index, mask, now, tally))
            else:
                ready = _read_line(m, sm, line, tag, set_index, mask, now, issue, merging, tally)
            if ready > done:
                done = ready
            line += 1
            set_index += 1
            left_in_tag -= 1
            if left_in_tag == 0:
                tag, set_index = place(line, m.sets)
                left_in_tag = m.sets
            elif set_index == m.sets:
                set_index = 0
    m.inflight[ring + slot] = done
    m.inflight_next[sm] = slot + 1 if slot + 1 < m.inflight_slots else 0
    return max(worst, done), issue


@njit
def read_tile(
    m: Any,
    sm: int,
    tensor: int,
    address: int,
    runs: int,
    run_bytes: int,
    pitch: int,
    share: int,
    shares: int,
    now: float,
) -> float:
    """Read a tile of `runs` runs of `run_bytes` bytes, `pitch` apart, into SM `sm`'s shared memory.

    With `shares` > 1 (multicast) only the `share`-th part is asked of the L2, but all of it arrives at the SM.
    Multicast requests are not merged with others' (measured: PV kernels that share V by multicast).

    Returns:
        The cycle at which the whole tile is in shared memory.
    """
    tally = m.tally
    tally[:] = 0
    merging = m.merge_width > 1 and shares == 1
    worst = now
    if runs == 1:
        piece = (run_bytes // shares + 127) // 128 * 128
        first = min(run_bytes, piece * share)
        last = run_bytes if share == shares - 1 else min(run_bytes, piece * (share + 1))
        if last > first:
            worst = _walk(m, sm, address + first, 1, last - first, pitch, now, tally, False, merging)[0]
    else:
        first, last = runs * share // shares, runs * (share + 1) // shares
        worst = _walk(m, sm, address + first * pitch, last - first, run_bytes, pitch, now, tally, False, merging)[0]
    delivered = sectors_of(address, runs, run_bytes, pitch)
    port = max(m.port_free[sm], now + m.l2_latency) + delivered * m.port_cycles
    m.port_free[sm] = port
    end = max(worst, port)
    _count(m, tensor, now, end, tally)
    m.counters[tensor, SM_READ] += delivered
    m.counters[tensor, SHARED_WRITE] += delivered
    return end


@njit
def write_tile(m: Any, sm: int, tensor: int, address: int, runs: int, run_bytes: int, pitch: int, now: float) -> float:
    """Write a tile from SM `sm`; returns the cycle at which the SM has sent all of it."""
    tally = m.tally
    tally[:] = 0
    sent = _walk(m, sm, address, runs, run_bytes, pitch, now, tally, True, False)[1]
    count = tally[L2_WRITE]
    port = max(m.write_port_free[sm], now) + count * m.write_port_cycles
    m.write_port_free[sm] = port
    end = max(sent, port)
    _count(m, tensor, now, end, tally)
    m.counters[tensor, SM_WRITE] += count
    return end


@njit
def _count(m: Any, tensor: int, now: float, end: float, tally: Any) -> None:
    """Add one access's tally to the counters, and to the timeline between `now` and its end."""
    tally[L2_HIT] = tally[L2_READ] - tally[L2_MISS] + tally[L2_WRITE]
    for c in range(L2_READ, DRAM_WRITE + 1):
        m.counters[tensor, c] += tally[c]
    m.counters[tensor, FAR_HIT] += tally[FAR_HIT]
    record_bytes(m, LEVEL_DRAM_READ, tensor, now, end, tally[DRAM_READ] * 32)
    record_bytes(m, LEVEL_DRAM_WRITE, tensor, now, end, tally[DRAM_WRITE] * 32)
    record_bytes(m, LEVEL_FABRIC, tensor, now, end, (tally[FABRIC_READ] + tally[FABRIC_WRITE]) * 32)
    record_bytes(m, LEVEL_L2_READ, tensor, now, end, tally[L2_READ] * 32)
    record_bytes(m, LEVEL_L2_WRITE, tensor, now, end, tally[L2_WRITE] * 32)
    record_hits(m, now, tally[L2_HIT], tally[L2_HIT] + tally[L2_MISS])
