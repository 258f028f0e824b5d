"""The L1: a sectored LRU cache per SM, for plain loads (`Load(..., through_l1=True)`).

cp.async.cg and TMA go past it. Stores are written through and allocate nothing, so they change nothing here; like on
the card, an SM does not see what other SMs write until its L1 is emptied, which the start of a kernel does. Its size is
what the resident CTAs' shared memory leaves of the SM's memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.l2.policies import MIX
from gpusim.memory.l2.slice_hash import place
from gpusim.memory.l2.tags import EMPTY, MAX_TAG, POPCOUNT, touch
from gpusim.memory.sizes import LINE_BYTES
from gpusim.spec import GpuSpec

L1_HIT, L1_MISS = int(C.L1_HIT), int(C.L1_MISS)

FIELDS: list[tuple[str, Any]] = [
    ("l1_sets", types.int64),  # 0: no room is left
    ("l1_ways", types.int64),
    ("l1_tags", types.uint32[::1]),
    ("l1_latency", types.float64),
]


def start(gpu: GpuSpec) -> dict[str, Any]:
    """The fields' values before any kernel."""
    lines = gpu.l1.size_bytes // LINE_BYTES
    return {
        "l1_sets": 0,
        "l1_ways": 1,
        "l1_tags": np.full(max(1, gpu.sm.count * lines), EMPTY, np.uint32),
        "l1_latency": gpu.l1.latency_cycles,
    }


def shape(gpu: GpuSpec, shared_bytes: int, lines: int) -> dict[str, int]:
    """Sets and ways beside `shared_bytes` of shared memory, for addresses of `lines` lines.

    A small L1 gets fewer ways where its sets would else be too few for a tag to tell all lines apart.
    """
    room = max(0, gpu.l1.size_bytes - shared_bytes) // LINE_BYTES
    ways = max(1, min(gpu.l1.ways, room))
    while ways > 1 and lines // (room // ways) > MAX_TAG:
        ways -= 1
    sets = room // ways
    if sets and lines // sets > MAX_TAG:
        sets = 0
    return {"l1_sets": sets, "l1_ways": ways}


@njit
def l1_misses(m: Any, sm: int, line: int, mask: int, tally: Any) -> int:
    """Look a plain load's sectors up in the SM's L1, which keeps them from now on; returns those to ask the L2 for."""
    present = 0
    if m.l1_sets > 0:
        tag, index = place(line, m.l1_sets, MIX)
        present = touch(m.l1_tags, (sm * m.l1_sets + index) * m.l1_ways, m.l1_ways, tag, mask)[0]
    missing = mask & ~present
    tally[L1_HIT] += POPCOUNT[present]
    tally[L1_MISS] += POPCOUNT[missing]
    return missing
