"""What lies behind the L2: DRAM, or a memory-side cache in front of it.

The cache is the L2's tag array at another place: each partition has a part in front of its own DRAM, so a line is in
one part only. It keeps what is read and what the L2 writes back, under LRU, and writes dirty lines to DRAM when they
leave.
`side_sets` is 0 when the GPU has none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from gpusim.counters import C
from gpusim.errors import UserError
from gpusim.jit import njit
from gpusim.memory.hbm.reserve import dram_read, dram_write
from gpusim.memory.l2.policies import MIX
from gpusim.memory.l2.slice_hash import line_at, place
from gpusim.memory.l2.tags import EMPTY, MAX_TAG, POPCOUNT, touch
from gpusim.memory.servers import queue
from gpusim.memory.sizes import LINE_BYTES, SECTOR_BYTES
from gpusim.memory.timeline import record_bytes
from gpusim.spec import GpuSpec
from traces.tensor import ALIGNMENT_BYTES

DRAM_READ, DRAM_WRITE, MSC_HIT, MSC_MISS = int(C.DRAM_READ), int(C.DRAM_WRITE), int(C.MSC_HIT), int(C.MSC_MISS)
LEVEL_DRAM_WRITE = 1
LINES_PER_PAGE_SHIFT = (ALIGNMENT_BYTES // LINE_BYTES).bit_length() - 1

FIELDS: list[tuple[str, Any]] = [
    ("side_sets", types.int64),  # per partition; 0: no such cache
    ("side_ways", types.int64),
    ("side_tags", types.uint32[::1]),
    ("side_cycles", types.float64),  # per sector
    ("side_latency", types.float64),  # beyond the L2's
    ("side_free", types.float64[::1]),
]


def start(gpu: GpuSpec, lines: int) -> dict[str, Any]:
    """The fields' values for a GPU, when nothing is cached yet."""
    cache, partitions = gpu.memory_side_cache, gpu.l2.partitions
    if math.isinf(cache.size_bytes):
        sets = -(-lines // cache.ways)
    else:
        sets = int(cache.size_bytes) // (LINE_BYTES * cache.ways * partitions)
    if sets and lines // sets > MAX_TAG:
        raise UserError(
            f"memory_side_cache.size {cache.size_bytes:.0f} bytes is too small "
            f"for tensors of {lines * LINE_BYTES} bytes"
        )
    return {
        "side_sets": sets,
        "side_ways": cache.ways,
        "side_tags": np.full(max(1, partitions * sets * cache.ways), EMPTY, np.uint32),
        **rates(gpu),
        "side_free": np.zeros(partitions),
    }


def rates(gpu: GpuSpec) -> dict[str, float]:
    """What depends on the SM clock."""
    cache = gpu.memory_side_cache
    return {
        "side_cycles": SECTOR_BYTES * gpu.l2.partitions * gpu.sm.clock_hz / cache.bandwidth_bytes_per_s,
        "side_latency": max(0.0, cache.latency_cycles - gpu.l2.latency_cycles),
    }


@njit
def memory_read(
    m: Any, line: int, home: int, slice_index: int, mask: int, now: float, tally: Any
) -> tuple[float, float]:
    """Read sectors of a line from its home's memory; returns (latency beyond an L2 hit's, longest wait in a queue)."""
    sectors = POPCOUNT[mask]
    if m.side_sets == 0:
        tally[DRAM_READ] += sectors
        return m.dram_latency, dram_read(m, line, home, slice_index, sectors, now)
    wait = queue(m.side_free, home, now, sectors * m.side_cycles)
    tag, index = place(line, m.side_sets, MIX)
    row = home * m.side_sets + index
    present, victim = touch(m.side_tags, row * m.side_ways, m.side_ways, tag, mask)
    wait = max(wait, _dispose(m, home, index, victim, now))
    tally[MSC_HIT] += POPCOUNT[present]
    absent = POPCOUNT[mask & ~present]
    if absent == 0:
        return m.side_latency, wait
    tally[MSC_MISS] += absent
    tally[DRAM_READ] += absent
    return m.dram_latency, max(wait, dram_read(m, line, home, slice_index, absent, now))


@njit
def memory_write(m: Any, line: int, home: int, slice_index: int, mask: int, now: float) -> tuple[int, float]:
    """Write sectors of a line to its home's memory.

    Returns:
        (sectors that went to DRAM at once, for the caller to count; the delay that queues impose).
    """
    sectors = POPCOUNT[mask]
    if m.side_sets == 0:
        return sectors, dram_write(m, line, home, slice_index, sectors, now)
    wait = queue(m.side_free, home, now, sectors * m.side_cycles)
    tag, index = place(line, m.side_sets, MIX)
    base = (home * m.side_sets + index) * m.side_ways
    victim = touch(m.side_tags, base, m.side_ways, tag, mask)[1]
    m.side_tags[base] |= np.uint32(mask << 4)
    return 0, max(wait, _dispose(m, home, index, victim, now))


@njit
def _dispose(m: Any, home: int, index: int, victim: int, now: float) -> float:
    """Write the dirty sectors of a line that left to DRAM."""
    dirty = (victim >> 4) & 15
    if dirty == 0:
        return 0.0
    line = line_at(victim >> 8, index, m.side_sets, MIX)
    sectors = POPCOUNT[dirty]
    tensor = m.tensor_of_page[line >> LINES_PER_PAGE_SHIFT]
    m.counters[tensor, DRAM_WRITE] += sectors
    # The slice behind which the line lies decides its DRAM channel.
    slice_index = place(line, m.sets, m.slice_hash)[1] % m.slices
    wait = dram_write(m, line, home, slice_index, sectors, now)
    record_bytes(m, LEVEL_DRAM_WRITE, tensor, now + wait, now + wait, sectors * 32)
    return wait
