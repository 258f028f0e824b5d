"""What a profiler's flush leaves in the L2: a little dirty data of the profiler's own, which kernels then evict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpusim.jit import njit
from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.policies import WRITE_BACK, WRITE_POLICIES
from gpusim.memory.l2.slice_hash import place
from gpusim.memory.l2.tags import EMPTY, TAG_SHIFT
from gpusim.memory.sizes import LINE_BYTES
from gpusim.spec import GpuSpec
from traces.dtypes import DTYPES
from traces.tensor import ALIGNMENT_BYTES, Tensor

RESIDUE = "profiler"
"""Name that the traffic of the residue is accounted under."""


def residue(gpu: GpuSpec, tensors: Sequence[Tensor]) -> Tensor | None:
    """The data that `flush` leaves, behind `tensors` in memory; None where nothing can stay dirty."""
    l2, fp32 = gpu.l2, DTYPES["fp32"]
    lines = int(min(l2.flush_residue_bytes, l2.dirty_cap_bytes)) // LINE_BYTES
    if WRITE_POLICIES[l2.write_policy] != WRITE_BACK or not l2.size_bytes or math.isinf(l2.size_bytes) or not lines:
        return None
    base = -(-max(t.end for t in tensors) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    columns = lines * LINE_BYTES // fp32.element_bytes
    return Tensor(RESIDUE, len(tensors), 1, 1, 1, columns, fp32, "bhsd", base)


@njit
def leave_dirty(m: Any, first: int, end: int) -> None:
    """Make lines `first` to `end` - 1 dirty in an empty L2, at home; what comes later is more recently used."""
    for line in range(first, end):
        tag, set_index = place(line, m.sets, m.slice_hash)
        home = home_partition(m, line)
        base = (home * m.sets + set_index) * m.ways
        for at in range(base, base + m.ways):
            if m.tags[at] == EMPTY:
                m.tags[at] = (np.uint32(tag) << TAG_SHIFT) | np.uint32(0xFF)
                m.dirty_sectors[home] += 4
                break
