"""A tile access: every line of it through the L1, or straight to the L2 (`gpusim.memory.l2`).

`read_tile` and `write_tile` are the only entries. Both walk the tile line by line and count as they go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l1 import l1_misses
from gpusim.memory.l2.read import read_line
from gpusim.memory.l2.reduce import reduce_line
from gpusim.memory.l2.slice_hash import place
from gpusim.memory.l2.write import write_line
from gpusim.memory.sizes import THROUGH_L1
from gpusim.memory.timeline import record_bytes, record_hits
from gpusim.memory.uplink import send

SM_READ, SM_WRITE, L2_READ, L2_WRITE = int(C.SM_READ), int(C.SM_WRITE), int(C.L2_READ), int(C.L2_WRITE)
L2_HIT, L2_MISS, FABRIC_READ, FABRIC_WRITE = int(C.L2_HIT), int(C.L2_MISS), int(C.FABRIC_READ), int(C.FABRIC_WRITE)
DRAM_READ, DRAM_WRITE, SHARED_WRITE, FAR_HIT = int(C.DRAM_READ), int(C.DRAM_WRITE), int(C.SHARED_WRITE), int(C.FAR_HIT)
L1_MISS, L2_REDUCE = int(C.L1_MISS), int(C.L2_REDUCE)
LEVEL_DRAM_READ, LEVEL_DRAM_WRITE, LEVEL_FABRIC, LEVEL_L2_READ, LEVEL_L2_WRITE = range(5)


@njit
def run_start(address: int, r: int, pitch: int, pages: Any, page_bytes: int) -> int:
    """Where run `r` of a tile starts.

    `address` is that of run 0; with `pages`, the addresses of pages of `page_bytes`, it is the offset from the first.
    """
    start = address + r * pitch
    if pages is None:
        return start
    return int(pages[start // page_bytes] + start % page_bytes)


@njit
def sectors_of(address: int, runs: int, run_bytes: int, pitch: int, pages: Any = None, page_bytes: int = 0) -> int:
    """Sectors that `runs` runs of bytes touch (a sector two runs share counts twice, as two requests)."""
    total = 0
    for r in range(runs):
        start = run_start(address, r, pitch, pages, page_bytes)
        total += (start + run_bytes - 1) // 32 - start // 32 + 1
    return total


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
    adding: float | None,
    merging: bool,
    flags: int | None,
    pages: Any = None,
    page_bytes: int = 0,
) -> tuple[float, float]:
    """Access runs of bytes (see `run_start`) line by line.

    With `adding` None they are read, with 0 written, else added to what is there, which takes a slice `adding` cycles
    per sector. (None is a type, which Numba compiles apart: reads have no code of writes among them.)

    An SM has `inflight_slots` lines outstanding. They take slots in turn, and a line is asked for when the one before
    it in its slot is back: one that waits for a refresh holds up none but that one.

    Returns:
        When the first and the last data leave the L2 for the SM, or it has taken the first and the last write.
    """
    partition = m.partition_of_sm[sm]
    ring = sm * m.inflight_slots
    slot, delay = m.inflight_next[sm], m.request_delay[sm]
    first, last = np.inf, now
    for r in range(runs):
        start = run_start(address, r, pitch, pages, page_bytes)
        last_byte = start + run_bytes - 1
        first_line, last_line = start >> 7, last_byte >> 7
        line = first_line
        tag, set_index = place(line, m.sets, m.slice_hash)
        left_in_tag = m.sets - (line - tag * m.sets)
        while line <= last_line:
            mask = 15
            if line == first_line:
                mask = (mask << ((start >> 5) & 3)) & 15
            if line == last_line:
                mask &= 15 >> (3 - ((last_byte >> 5) & 3))
            if adding is None:
                ready = now + m.l1_latency
                if flags is not None and flags >= THROUGH_L1:
                    mask = l1_misses(m, sm, line, mask, tally)
                if mask:
                    hint = None if flags is None else flags & (THROUGH_L1 - 1)
                    issue = max(now, m.inflight[ring + slot]) + delay
                    ready = read_line(m, sm, line, tag, set_index, mask, hint, now, issue, merging, tally)
                    m.inflight[ring + slot] = ready
                    slot = slot + 1 if slot + 1 < m.inflight_slots else 0
            elif adding:
                ready = now + reduce_line(m, partition, line, tag, set_index, mask, adding, now, tally)
            else:
                ready = now + write_line(m, partition, line, tag, set_index, mask, now, tally)
            if mask:  # not all of it was in the L1
                first = min(first, ready)
            last = max(last, ready)
            line += 1
            set_index += 1
            left_in_tag -= 1
            if left_in_tag == 0:
                tag, set_index = place(line, m.sets, m.slice_hash)
                left_in_tag = m.sets
            elif set_index == m.sets:
                set_index = 0
    m.inflight_next[sm] = slot
    return first, last


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
    flags: int = 0,
    pages: Any = None,
    page_bytes: int = 0,
) -> float:
    """Read a tile of `runs` runs of `run_bytes` bytes, `pitch` apart, into SM `sm`'s shared memory.

    With `pages` the rows lie on these pages of `page_bytes`, and `address` is an offset in them (see `run_start`).

    With `shares` > 1 (multicast) only the `share`-th part is asked of the L2, but all of it arrives at the SM.
    Multicast requests are not merged with others' (measured: PV kernels that share V by multicast).
    What the L2 sends passes the port that the SMs of a GPC share, merged and multicast data once.
    `flags` is the load's hint (`gpusim.memory.l2.policies`), plus `THROUGH_L1` for a plain load; only what that load
    misses in the L1 crosses the SM's port.

    Returns:
        The cycle at which the whole tile is in shared memory.
    """
    tally = m.tally
    tally[:] = 0
    merging = m.merge_width > 1 and shares == 1
    if runs == 1:
        piece = (run_bytes // shares + 127) // 128 * 128
        start = min(run_bytes, piece * share)
        length = (run_bytes if share == shares - 1 else min(run_bytes, piece * (share + 1))) - start
        count = 1
    else:
        first_run, length = runs * share // shares, run_bytes
        count, start = runs * (share + 1) // shares - first_run, first_run * pitch
    first = last = now
    first_byte = address + start
    if length <= 0:
        pass
    elif m.plain_lru and flags == 0:
        first, last = _walk(m, sm, first_byte, count, length, pitch, now, tally, None, merging, None, pages, page_bytes)
    else:
        first, last = _walk(
            m, sm, first_byte, count, length, pitch, now, tally, None, merging, flags, pages, page_bytes
        )
    delivered = sectors_of(address, runs, run_bytes, pitch, pages, page_bytes)
    crossing = tally[L1_MISS] if flags >= THROUGH_L1 else delivered
    end = last
    if crossing:
        port = max(m.port_free[sm], first) + crossing * m.port_cycles
        m.port_free[sm] = port
        gpc = m.gpc_of_sm[sm]
        link = max(m.gpc_free[gpc], first) + tally[L2_READ] * m.gpc_cycles
        m.gpc_free[gpc] = link
        end = max(last, port, link)
    _count(m, tensor, now, end, tally)
    m.counters[tensor, SM_READ] += crossing
    m.counters[tensor, SHARED_WRITE] += delivered
    return end


@njit
def write_tile(
    m: Any,
    sm: int,
    tensor: int,
    address: int,
    runs: int,
    run_bytes: int,
    pitch: int,
    now: float,
    adding: bool = False,
    pages: Any = None,
    page_bytes: int = 0,
    by_fragments: bool = False,
) -> float:
    """Write a tile from SM `sm`, or add it to what is there; returns the cycle at which the SM has sent all of it.

    It has when the L2 has taken all, which may wait for the fabric or for victims. That is as things stand: if others
    send meanwhile it is later (`gpusim.memory.uplink.still_sending`).

    `pages` as in `read_tile`. What is added is sent line by line, or `by_fragments`, sector by sector.
    """
    tally = m.tally
    tally[:] = 0
    port_cycles, slice_cycles = m.write_port_cycles, 0.0
    if adding and by_fragments:
        port_cycles, slice_cycles = m.fragment_port_cycles, m.fragment_cycles
    elif adding:
        port_cycles, slice_cycles = m.reduce_port_cycles, m.reduce_cycles
    taken = _walk(m, sm, address, runs, run_bytes, pitch, now, tally, slice_cycles, False, None, pages, page_bytes)[1]
    count = tally[L2_WRITE]
    end = max(taken, send(m, sm, count * port_cycles, now))
    _count(m, tensor, now, end, tally)
    m.counters[tensor, SM_WRITE] += count
    return end


@njit
def _count(m: Any, tensor: int, now: float, end: float, tally: Any) -> None:
    """Add one access's tally to the counters, and to the timeline between `now` and its end."""
    tally[L2_HIT] = tally[L2_READ] - tally[L2_MISS] + tally[L2_WRITE]
    for c in range(L2_READ, DRAM_WRITE + 1):
        m.counters[tensor, c] += tally[c]
    for c in range(FAR_HIT, L2_REDUCE + 1):
        m.counters[tensor, c] += tally[c]
    record_bytes(m, LEVEL_DRAM_READ, tensor, now, end, tally[DRAM_READ] * 32)
    record_bytes(m, LEVEL_DRAM_WRITE, tensor, now, end, tally[DRAM_WRITE] * 32)
    record_bytes(m, LEVEL_FABRIC, tensor, now, end, (tally[FABRIC_READ] + tally[FABRIC_WRITE]) * 32)
    record_bytes(m, LEVEL_L2_READ, tensor, now, end, tally[L2_READ] * 32)
    record_bytes(m, LEVEL_L2_WRITE, tensor, now, end, tally[L2_WRITE] * 32)
    record_hits(m, now, tally[L2_HIT], tally[L2_HIT] + tally[L2_MISS])
