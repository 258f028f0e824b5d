"""The read coalescer between SMs and L2: reads of one line by SMs of a merge group, close in time, become one.

Each group (`sm.merge_group_of_sm`) has a table of open requests (`gpusim.memory.l2.in_flight`). A request
takes others while it has fewer than `noc.merge_width`, brings the sectors they want, and is open: from
`noc.merge_window` before it was sent, and while the L2 works on it, which is the window after a hit, and as long as the
miss and the queues before it take on top. `noc.coalescer = "none"` is a width of 1.

The check itself stands in `gpusim.memory.l2.read.read_line`: as a function of its own it costs a tenth of the speed of
the simulator, because Numba then counts references to the table's arrays on every line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from gpusim.memory.l2.in_flight import SLOTS
from gpusim.spec import GpuSpec

_I32, _F64 = types.int32[::1], types.float64[::1]
FIELDS: list[tuple[str, Any]] = [
    ("merge_width", types.int64),
    ("merge_window", types.float64),
    ("merge_group_of_sm", types.int64[::1]),
    ("merge_line", _I32),
    ("merge_mask", _I32),  # sectors that the request brings
    ("merge_count", _I32),
    ("merge_start", _F64),
    ("merge_ready", _F64),
]


def start(gpu: GpuSpec, cached: bool) -> dict[str, Any]:
    """The fields' values for a GPU; without an L2 nothing is merged."""
    groups = gpu.sm.merge_group_of_sm
    slots = (max(groups) + 1) * SLOTS
    return {
        "merge_width": gpu.noc.merge_width if gpu.noc.coalescer == "merge" and cached else 1,
        "merge_window": gpu.noc.merge_window_cycles,
        "merge_group_of_sm": np.array(groups, np.int64),
        "merge_line": np.full(slots, -1, np.int32),
        "merge_mask": np.zeros(slots, np.int32),
        "merge_count": np.zeros(slots, np.int32),
        "merge_start": np.zeros(slots),
        "merge_ready": np.zeros(slots),
    }
