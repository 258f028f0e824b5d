"""The memory system's state: one compiled record that every stage reads and writes.

Specs are immutable (`gpusim.spec`); everything that changes while simulating lives here, in arrays, so that the
compiled stages can share it. Times are SM cycles since the start of the simulation, as floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from gpusim.counters import COUNTERS, LEVELS, C
from gpusim.memory import l1, memory_side, uplink
from gpusim.memory.distance import request_delays
from gpusim.memory.hbm.reservations import HBM_FIELDS, hbm_values
from gpusim.memory.hbm.rules import Rules
from gpusim.memory.hbm.timing import forget_times
from gpusim.memory.l2 import build as l2_build
from gpusim.memory.l2.policies import MIX
from gpusim.memory.l2.residue import leave_dirty, residue
from gpusim.memory.l2.slice_hash import lines_at
from gpusim.memory.l2.tags import DIRTY, EMPTY, POPCOUNT
from gpusim.memory.l2.write import clean_oldest
from gpusim.memory.sizes import LINE_BYTES, SECTOR_BYTES
from gpusim.spec import GpuSpec
from traces.tensor import ALIGNMENT_BYTES, Tensor

_INT, _FLOAT = types.int64, types.float64
_F64, _I64 = types.float64[::1], types.int64[::1]
_I32 = types.int32[::1]
FIELDS: list[tuple[str, Any]] = [
    # servers: cycles per sector, and when each is free
    ("port_cycles", _FLOAT),
    ("write_port_cycles", _FLOAT),
    ("reduce_port_cycles", _FLOAT),
    ("fragment_port_cycles", _FLOAT),
    ("gpc_cycles", _FLOAT),
    ("slice_cycles", _FLOAT),
    ("reduce_cycles", _FLOAT),  # of a slice, for fp32 additions
    ("fragment_cycles", _FLOAT),
    ("fabric_cycles", _FLOAT),
    ("port_free", _F64),
    ("gpc_free", _F64),
    ("slice_free", _F64),
    ("fabric_free", _F64),  # by the partition that sends
    ("inflight", _F64),  # per SM a ring of slots for lines that it waits for: when each is free
    ("inflight_next", _I64),
    ("inflight_slots", _INT),
    # latencies
    ("l2_latency", _FLOAT),
    ("request_delay", _F64),  # per SM, on top of it
    ("fabric_latency", _FLOAT),
    ("dram_latency", _FLOAT),  # beyond the L2's
    *HBM_FIELDS,
    # who and what
    ("partition_of_sm", _I64),
    ("gpc_of_sm", _I64),
    ("tensor_of_page", _I32),
    ("counters", types.int64[:, ::1]),  # [tensor, counter]
    ("timeline", types.float64[:, :, ::1]),  # [level, tensor, bin] bytes
    ("activity", types.float64[:, ::1]),  # [activity, bin]
    ("bin_cycles", _F64),  # one element
    ("touched_bins", _I64),  # one element
    ("tally", _I64),  # scratch of one access, by counter
    *uplink.FIELDS,
    *l1.FIELDS,
    *l2_build.FIELDS,
    *memory_side.FIELDS,
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

    def __init__(self, gpu: GpuSpec, tensors: Sequence[Tensor], flushing: bool = False) -> None:
        """The state of `gpu` with nothing cached.

        Args:
            gpu: the machine.
            tensors: all that will be accessed.
            flushing: `flush` will be called, so there is a place for what it leaves.
        """
        self.gpu = gpu
        self.tensors = tuple(tensors)
        self._residue = residue(gpu, self.tensors) if flushing else None
        if self._residue:
            self.tensors += (self._residue,)
        self._lines = -(-max(t.end for t in self.tensors) // LINE_BYTES)
        self.values = (
            uplink.start(gpu)
            | l1.start(gpu)
            | l2_build.start(gpu, self._lines)
            | memory_side.start(gpu, self._lines)
            | _servers(gpu)
            | hbm_values(gpu)
            | _accounting(gpu, self.tensors)
        )
        self.state = self._compile()

    def _compile(self) -> Any:
        return Memory(*(_typed(self.values[name], kind) for name, kind in FIELDS))

    def run_at(self, gpu: GpuSpec, shared_bytes: int = 0) -> None:
        """Make ready for a kernel whose CTAs take `shared_bytes` of each SM's shared memory.

        Rates and latencies are expressed in the cycles of `gpu`, the same machine at another SM clock; L1s are emptied;
        all other state is kept.
        """
        rates = _servers(gpu) | hbm_values(gpu) | memory_side.rates(gpu) | l1.shape(gpu, shared_bytes, self._lines)
        for name, value in rates.items():
            if isinstance(value, (int, float, Rules)):
                self.values[name] = value
        self.values["l1_tags"][:] = EMPTY
        self.state = self._compile()

    def flush(self) -> None:
        """Empty the caches as a profiler does before every kernel.

        Dirty data is dropped, for that write-back is not counted; a little of the profiler's own is left, dirty.
        """
        for name in ("tags", "l1_tags", "side_tags"):
            self.values[name][:] = EMPTY
        for name in ("dirty_sectors", "pinned", "ages"):
            self.values[name][:] = 0
        if self._residue:
            leave_dirty(self.state, self._residue.base // LINE_BYTES, self._residue.end // LINE_BYTES)

    def settle(self, now: float) -> dict[str, int]:
        """Write back what a GPU does between two kernels (`l2.idle_dirty_share`), at cycle `now`.

        Returns:
            bytes written to DRAM by tensor; the counters, which are a kernel's, are zero afterwards.
        """
        self.reset_counters()
        for partition, dirty in enumerate(self.values["dirty_sectors"]):
            if dirty > self.values["idle_dirty_sectors"]:
                clean_oldest(self.state, partition, self.values["idle_dirty_sectors"], now)
        written = self.values["counters"][:, C.DRAM_WRITE] * SECTOR_BYTES
        self.reset_counters()
        return {t.name: int(written[t.index]) for t in self.tensors}

    def start_timeline(self) -> None:
        """Time zero: an empty timeline and empty queues; caches and open rows keep what they hold."""
        self.values["timeline"][:] = 0
        self.values["activity"][:] = 0
        self.values["bin_cycles"][:] = FIRST_BIN_CYCLES
        self.values["touched_bins"][:] = 0
        queues = ("port_free", "gpc_free", "slice_free", "fabric_free", "side_free", "inflight")
        for name in (*queues, *uplink.MOVING):
            self.values[name][:] = 0
        for name in ("bus_free", "activate_free", "merge_ready", "merge_start", "write_queue", "reads_waiting"):
            self.values[name][:] = 0
        forget_times(self.values)
        for name in ("merge_line", "fill_line"):
            self.values[name][:] = -1

    def reset_counters(self) -> None:
        """Zero the counters (the timeline goes on)."""
        self.values["counters"][:] = 0

    def dirty_bytes(self) -> dict[str, int]:
        """Bytes by tensor that are dirty in the L2, the memory-side cache or both: written, and not yet in DRAM."""
        v = self.values
        line, bits = _dirty(v["tags"], v["ways"], v["sets"], v["slice_hash"])
        if v["side_sets"]:
            side_line, side_bits = _dirty(v["side_tags"], v["side_ways"], v["side_sets"], MIX)
            line, at = np.unique(np.concatenate([line, side_line]), return_inverse=True)
            both = np.concatenate([bits, side_bits])
            bits = np.zeros(len(line), np.uint32)
            np.bitwise_or.at(bits, at, both)
        owner = v["tensor_of_page"][line * LINE_BYTES // ALIGNMENT_BYTES]
        totals = np.bincount(owner, weights=POPCOUNT[bits], minlength=len(self.tensors))
        return {t.name: int(totals[t.index]) * SECTOR_BYTES for t in self.tensors}

    def dirty_sectors(self) -> int:
        """Dirty sectors in the tags of the L2."""
        return int(POPCOUNT[(self.values["tags"] >> np.uint32(4)) & np.uint32(15)].sum())


def _dirty(words: Any, ways: int, sets: int, hashing: int) -> tuple[Any, Any]:
    """(line, dirty sectors as bits) of every tag word with dirty sectors."""
    at = np.nonzero(words & DIRTY)[0]
    line = lines_at((words[at] >> np.uint32(8)).astype(np.int64), (at // ways) % sets, sets, hashing)
    return line, (words[at] >> np.uint32(4)) & np.uint32(15)


def _typed(value: Any, kind: Any) -> Any:
    if kind is _INT:
        return int(value)
    return float(value) if kind is _FLOAT else value


def _servers(gpu: GpuSpec) -> dict[str, Any]:
    sm, l2 = gpu.sm, gpu.l2
    slots = max(1, sm.max_inflight_bytes // LINE_BYTES)
    far = (l2.partitions - 1) / l2.partitions
    return {
        "port_cycles": SECTOR_BYTES / sm.read_port_bytes_per_clk,
        "write_port_cycles": SECTOR_BYTES / sm.write_port_bytes_per_clk,
        "reduce_port_cycles": SECTOR_BYTES / sm.reduce_port_bytes_per_clk,
        "fragment_port_cycles": SECTOR_BYTES / sm.fragment_port_bytes_per_clk,
        "gpc_cycles": SECTOR_BYTES / gpu.noc.gpc_port_bytes_per_clk,
        "slice_cycles": SECTOR_BYTES / l2.slice_bytes_per_clk * sm.clock_hz / l2.clock_hz,
        "reduce_cycles": SECTOR_BYTES / l2.reduce_bytes_per_clk * sm.clock_hz / l2.clock_hz,
        "fragment_cycles": SECTOR_BYTES / l2.fragment_bytes_per_clk * sm.clock_hz / l2.clock_hz,
        "fabric_cycles": SECTOR_BYTES * l2.partitions / gpu.fabric_bytes_per_clk,
        "port_free": np.zeros(sm.count),
        "gpc_free": np.zeros(max(sm.gpc_of_sm) + 1),
        "slice_free": np.zeros(l2.slices),
        "fabric_free": np.zeros(l2.partitions),
        "inflight": np.zeros(sm.count * slots),
        "inflight_next": np.zeros(sm.count, np.int64),
        "inflight_slots": slots,
        "l2_latency": l2.latency_cycles,
        "request_delay": request_delays(gpu),
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
        "gpc_of_sm": np.array(gpu.sm.gpc_of_sm, np.int64),
        "tensor_of_page": owner,
        "counters": np.zeros((len(tensors), len(COUNTERS)), np.int64),
        "timeline": np.zeros((len(LEVELS), len(tensors), TIMELINE_BINS)),
        "activity": np.zeros((len(ACTIVITIES), TIMELINE_BINS)),
        "bin_cycles": np.full(1, FIRST_BIN_CYCLES),
        "touched_bins": np.zeros(1, np.int64),
        "tally": np.zeros(len(COUNTERS), np.int64),
    }
