"""A reduction of one line: fp32 numbers added to what is in memory, at the line's home.

The home partition is where all SMs' additions meet (measured: the latency of an atomic tells the home). A reduction is
posted like a write and crosses the fabric like one, but it needs the old data: sectors that the home lacks come from
the memory behind it. The sum stays there under the rules of writes (`gpusim.memory.l2.write`); copies elsewhere, also
in the SM's own partition, are dropped.
"""

from __future__ import annotations

from typing import Any

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.policies import WRITE_BACK
from gpusim.memory.l2.tags import POPCOUNT, invalidate
from gpusim.memory.l2.write import make_dirty, take
from gpusim.memory.memory_side import memory_read, memory_write
from gpusim.memory.servers import queue

L2_WRITE, L2_REDUCE, L2_MISS = int(C.L2_WRITE), int(C.L2_REDUCE), int(C.L2_MISS)
FABRIC_WRITE, DRAM_WRITE = int(C.FABRIC_WRITE), int(C.DRAM_WRITE)


@njit
def reduce_line(
    m: Any, partition: int, line: int, tag: int, set_index: int, mask: int, cycles: float, now: float, tally: Any
) -> float:
    """Add to sectors `mask` of one line, `cycles` each; returns the wait until the L2 has taken them."""
    sectors = POPCOUNT[mask]
    tally[L2_WRITE] += sectors
    tally[L2_REDUCE] += sectors
    slice_index = set_index % m.slices
    home = home_partition(m, line)
    wait = queue(m.slice_free, home * m.slices + slice_index, now, sectors * cycles)
    if home != partition:
        tally[FABRIC_WRITE] += sectors
        wait = max(wait, queue(m.slice_free, partition * m.slices + slice_index, now, sectors * m.slice_cycles))
        wait = max(wait, queue(m.fabric_free, partition, now, sectors * m.fabric_cycles))
    held = 0
    if m.cached:
        for other in range(m.partitions):
            if other != home:
                invalidate(m.tags, (other * m.sets + set_index) * m.ways, m.ways, tag, mask)
        held, longer = take(m, home, tag, set_index, mask, now)
        wait = max(wait, longer)
    missing = mask & ~held
    if missing:
        tally[L2_MISS] += POPCOUNT[missing]
        wait = max(wait, memory_read(m, line, home, slice_index, missing, now, tally)[1])
    if m.cached and m.write_policy == WRITE_BACK:
        return max(wait, make_dirty(m, home, tag, set_index, mask, now))
    written, longer = memory_write(m, line, home, slice_index, mask, now)
    tally[DRAM_WRITE] += written
    return max(wait, longer)
