"""The memory system's state: one compiled record that every stage reads and writes.

Specs are immutable (`gpusim.spec`); everything that changes while simulating lives here, in arrays, so that the
compiled stages can share it. Times are SM cycles since the start of the simulation, as floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from gpusim.counters import COUNTERS, LEVELS
from gpusim.errors import UserError
from gpusim.memory.hbm.reservations import HBM_FIELDS, hbm_values
from gpusim.memory.hbm.rules import Rules
from gpusim.memory.hbm.timing import forget_times
from gpusim.memory.l2 import lines_at
from gpusim.spec import GpuSpec
from traces.tensor import ALIGNMENT_BYTES, Tensor

LINE_BYTES = 128
SECTOR_BYTES = 32
MERGE_SLOTS = 1 << 11
"""Entries of a coalescer's table; a line's entry is found by its low bits, so far more than can be in flight."""
CHUNK_BYTES = 4096
"""Unit in which an SM's outstanding requests are limited."""

EMPTY_WORD = np.uint32(0xFFFFFF00)
"""A tag word that matches no line: bits 31..8 tag, 7..4 dirty sectors, 3..0 valid sectors."""


_INT, _FLOAT = types.int64, types.float64
_F64, _I64 = types.float64[::1], types.int64[::1]
_U32, _I32, _U8 = types.uint32[::1], types.int32[::1], types.uint8[::1]
FIELDS: list[tuple[str, Any]] = [
    # L2 organisation
    ("partitions", _INT),
    ("sets", _INT),
    ("ways", _INT),
    ("slices", _INT),  # per partition
    ("home_mask", _INT),
    ("cached", _INT),
    ("write_through", _INT),
    ("home_depth", _INT),  # place in the order of recency where a far read stays at home, -1: it does not
    ("dirty_cap_sectors", _INT),  # per partition
    ("tags", _U32),
    ("dirty_sectors", _I64),
    # coalescer
    ("merge_width", _INT),
    ("merge_window", _FLOAT),
    ("merge_group_of_sm", _I64),
    ("merge_line", _I32),
    ("merge_mask", _I32),  # sectors that the request brings
    ("merge_count", _I32),
    ("merge_start", _F64),
    ("merge_ready", _F64),
    # servers: cycles per sector, and when each is free
    ("port_cycles", _FLOAT),
    ("write_port_cycles", _FLOAT),
    ("slice_cycles", _FLOAT),
    ("fabric_cycles", _FLOAT),
    ("port_free", _F64),
    ("write_port_free", _F64),
    ("slice_free", _F64),
    ("fabric_free", _F64),
    ("inflight", _F64),  # per SM a ring of completion times, one per chunk
    ("inflight_next", _I64),
    ("inflight_slots", _INT),
    # latencies
    ("l2_latency", _FLOAT),
    ("fabric_latency", _FLOAT),
    ("dram_latency", _FLOAT),  # beyond the L2's
    *HBM_FIELDS,
    # who and what
    ("partition_of_sm", _I64),
    ("tensor_of_page", _I32),
    ("counters", types.int64[:, ::1]),  # [tensor, counter]
    ("timeline", types.float64[:, :, ::1]),  # [level, tensor, bin] bytes
    ("activity", types.float64[:, ::1]),  # [activity, bin]
    ("bin_cycles", _F64),  # one element
    ("touched_bins", _I64),  # one element
    ("tally", _I64),  # scratch of one access, by counter
]


@structref.register
class _MemoryType(types.StructRef):
    """Numba type of `Memory`."""


class Memory(structref.StructRefProxy):
    """The compiled record; Python sees it through `fields`."""


structref.define_proxy(Memory, _MemoryType, [name for name, _ in FIELDS])


TIMELINE_BINS = 512
FIRST_BIN_CYCLES = 64.0
ACTIVITIES = ("tensor_busy", "vector_busy", "memory_wait", "l2_hit_sectors", "l2_lookup_sectors")


class MemorySystem:
    """Builds the state for a GPU and a set of tensors, and keeps Python's references to its arrays."""

    def __init__(self, gpu: GpuSpec, tensors: Sequence[Tensor]) -> None:
        self.gpu = gpu
        self.tensors = tuple(tensors)
        end = max(t.end for t in tensors)
        self.values = _l2(gpu, -(-end // LINE_BYTES)) | _servers(gpu) | hbm_values(gpu) | _accounting(gpu, self.tensors)
        self.state = self._compile()

    def _compile(self) -> Any:
        return Memory(*(_typed(self.values[name], kind) for name, kind in FIELDS))

    def run_at(self, gpu: GpuSpec) -> None:
        """Express rates and latencies in the cycles of `gpu`, the same machine at another SM clock; keep all state."""
        for name, value in (_servers(gpu) | hbm_values(gpu)).items():
            if isinstance(value, (int, float, Rules)):
                self.values[name] = value
        self.state = self._compile()

    def flush(self) -> None:
        """Empty the L2 (dirty data is dropped, as an invalidation between measurements writes it uncounted)."""
        self.values["tags"][:] = EMPTY_WORD
        self.values["dirty_sectors"][:] = 0

    def start_timeline(self) -> None:
        """Time zero: an empty timeline and empty queues; caches and open rows keep what they hold."""
        self.values["timeline"][:] = 0
        self.values["activity"][:] = 0
        self.values["bin_cycles"][:] = FIRST_BIN_CYCLES
        self.values["touched_bins"][:] = 0
        for name in ("port_free", "write_port_free", "slice_free", "fabric_free", "inflight", "bus_free"):
            self.values[name][:] = 0
        for name in ("activate_free", "merge_ready", "merge_start", "write_queue", "reads_waiting"):
            self.values[name][:] = 0
        forget_times(self.values)
        self.values["merge_line"][:] = -1

    def reset_counters(self) -> None:
        """Zero the counters (the timeline goes on)."""
        self.values["counters"][:] = 0

    def dirty_bytes(self) -> dict[str, int]:
        """Dirty bytes in the L2 by tensor."""
        words = self.values["tags"]
        sets = self.values["sets"]
        dirty = np.nonzero((words >> np.uint32(4)) & np.uint32(15))[0]
        set_index = (dirty // self.values["ways"]) % sets
        tag = (words[dirty] >> np.uint32(8)).astype(np.int64)
        line = lines_at(tag, set_index, sets)
        bits = (words[dirty] >> np.uint32(4)) & np.uint32(15)
        sectors = np.array([bin(b).count("1") for b in range(16)])[bits]
        owner = self.values["tensor_of_page"][line * LINE_BYTES // ALIGNMENT_BYTES]
        totals = np.bincount(owner, weights=sectors, minlength=len(self.tensors))
        return {t.name: int(totals[t.index]) * SECTOR_BYTES for t in self.tensors}


def home_depth(policy: str, ways: int) -> int:
    """Place in a set's order of recency that `l2.home_allocation` stands for (0: most recent); -1 for none."""
    return {"none": -1, "allocate": 0, "middle": ways * 5 // 8, "evict_first": ways - 1}[policy]


def _typed(value: Any, kind: Any) -> Any:
    if kind is _INT:
        return int(value)
    return float(value) if kind is _FLOAT else value


def _l2(gpu: GpuSpec, lines: int) -> dict[str, Any]:
    l2 = gpu.l2
    if l2.line_bytes != LINE_BYTES or l2.sector_bytes != SECTOR_BYTES:
        raise UserError(f"l2.line and l2.sector must be {LINE_BYTES} and {SECTOR_BYTES} bytes in this version")
    ways = l2.ways
    if math.isinf(l2.size_bytes):
        sets = -(-lines // ways)  # consecutive lines fall into consecutive sets: none can overflow
    else:
        sets = int(l2.size_bytes * l2.data_share) // (LINE_BYTES * ways * l2.partitions)
    cached = int(sets > 0)
    if not cached:  # no tags are looked up, but lines spread over slices and channels by their set
        sets = l2.slices_per_partition * 64
    if lines // sets >= (1 << 24) - 1:
        raise UserError(f"l2.size {l2.size_bytes:.0f} bytes is too small for tensors of {lines * LINE_BYTES} bytes")
    cap = l2.dirty_cap_bytes
    cap_sectors = (
        (1 << 60) if math.isinf(cap) or math.isinf(l2.size_bytes) else int(cap) // SECTOR_BYTES // l2.partitions
    )
    groups = gpu.sm.merge_group_of_sm
    slots = (max(groups) + 1) * MERGE_SLOTS
    return {
        "partitions": l2.partitions,
        "sets": sets,
        "ways": ways,
        "slices": l2.slices_per_partition,
        "home_mask": 0xAB,
        "cached": cached,
        "write_through": int(l2.write_policy == "write_through"),
        # A cache without end has no reason to leave a line out: each is read from DRAM once.
        "home_depth": home_depth("allocate" if math.isinf(l2.size_bytes) else l2.home_allocation, ways),
        "dirty_cap_sectors": cap_sectors,
        "tags": np.full(l2.partitions * sets * ways, EMPTY_WORD, np.uint32),
        "dirty_sectors": np.zeros(l2.partitions, np.int64),
        "merge_width": gpu.noc.merge_width if gpu.noc.coalescer == "merge" and cached else 1,
        "merge_window": gpu.noc.merge_window_cycles,
        "merge_group_of_sm": np.array(groups, np.int64),
        "merge_line": np.full(slots, -1, np.int32),
        "merge_mask": np.zeros(slots, np.int32),
        "merge_count": np.zeros(slots, np.int32),
        "merge_start": np.zeros(slots),
        "merge_ready": np.zeros(slots),
    }


def _servers(gpu: GpuSpec) -> dict[str, Any]:
    sm, l2 = gpu.sm, gpu.l2
    slots = max(1, sm.max_inflight_bytes // CHUNK_BYTES)
    far = (l2.partitions - 1) / l2.partitions
    return {
        "port_cycles": SECTOR_BYTES / sm.read_port_bytes_per_clk,
        "write_port_cycles": SECTOR_BYTES / sm.write_port_bytes_per_clk,
        "slice_cycles": SECTOR_BYTES / l2.slice_bytes_per_clk * sm.clock_hz / l2.clock_hz,
        "fabric_cycles": SECTOR_BYTES * l2.partitions / gpu.fabric_bytes_per_clk,
        "port_free": np.zeros(sm.count),
        "write_port_free": np.zeros(sm.count),
        "slice_free": np.zeros(l2.slices),
        "fabric_free": np.zeros(l2.partitions),
        "inflight": np.zeros(sm.count * slots),
        "inflight_next": np.zeros(sm.count, np.int64),
        "inflight_slots": slots,
        "l2_latency": l2.latency_cycles,
        "fabric_latency": gpu.noc.fabric_latency_cycles,
        # What is measured is the mean over near and far homes, of which the far ones add the fabric's latency.
        "dram_latency": max(0.0, gpu.hbm.latency_cycles - l2.latency_cycles - gpu.noc.fabric_latency_cycles * far),
    }


def _accounting(gpu: GpuSpec, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    pages = -(-max(t.end for t in tensors) // ALIGNMENT_BYTES)
    owner = np.zeros(pages + 1, np.int32)
    for t in tensors:
        owner[t.base // ALIGNMENT_BYTES : -(-t.end // ALIGNMENT_BYTES)] = t.index
    return {
        "partition_of_sm": np.array(gpu.sm.partition_of_sm, np.int64),
        "tensor_of_page": owner,
        "counters": np.zeros((len(tensors), len(COUNTERS)), np.int64),
        "timeline": np.zeros((len(LEVELS), len(tensors), TIMELINE_BINS)),
        "activity": np.zeros((len(ACTIVITIES), TIMELINE_BINS)),
        "bin_cycles": np.full(1, FIRST_BIN_CYCLES),
        "touched_bins": np.zeros(1, np.int64),
        "tally": np.zeros(16, np.int64),
    }
