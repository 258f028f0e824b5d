"""The caches of a GPU: L1, L2, and one in front of DRAM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpusim.memory.l2.policies import HOME_ALLOCATIONS, REPLACEMENTS, SLICE_HASHES, WRITE_POLICIES
from gpusim.spec.checks import at_least, positive
from gpusim.spec.schema import choice, key
from gpusim.spec.units import (
    parse_bandwidth,
    parse_bytes_per_clock,
    parse_cycles,
    parse_fraction,
    parse_frequency,
    parse_int_list,
    parse_size,
    parse_whole,
)

__all__ = ["L1Spec", "L2Spec", "MemorySideCacheSpec"]


@dataclass(frozen=True, slots=True)
class L1Spec:
    """The L1 data cache, in one memory with shared memory.

    Attributes:
        size_bytes: L1 and shared memory together.
        line_bytes: cache line.
        ways: associativity.
        latency_cycles: load-to-use on a hit.
    """

    size_bytes: int = field(metadata=key("size", parse_size))
    line_bytes: int = field(metadata=key("line", parse_size))
    ways: int = field(metadata=key("ways", parse_whole))
    latency_cycles: float = field(metadata=key("latency", parse_cycles))

    def __post_init__(self) -> None:
        positive("l1", {"line": self.line_bytes})
        at_least(1, "l1", {"ways": self.ways})


@dataclass(frozen=True, slots=True)
class L2Spec:
    """The L2 cache.

    Attributes:
        size_bytes: capacity of all partitions together; 0 is no cache, `math.inf` one that never evicts.
        data_share: share of the capacity that data can use (the rest behaves as if it were not there).
        partitions: halves (or more) that each keep a copy of what their own SMs use.
        slices: slices of all partitions together.
        ways: associativity.
        line_bytes, sector_bytes: unit of tags and unit of transfer.
        clock_hz: the L2's own clock.
        slice_bytes_per_clk: bandwidth of one slice, bytes per *L2* cycle.
        reduce_bytes_per_clk: fp32 numbers that one slice adds to what it holds, bytes per L2 cycle, in whole lines,
        fragment_bytes_per_clk: and in single sectors.
        latency_cycles: load-to-use of a hit in the near partition, SM cycles.
        replacement: replacement policy, of `gpusim.memory.l2.policies.REPLACEMENTS`.
        home_allocation: what a far read leaves in the line's home partition: nothing (`none`), or the line as the most
            recently used of its set (`allocate`), the next to go (`evict_first`), or 5/8 of the way between (`middle`).
        write_policy: `write_back`, `write_through`, or `write_around` (memory only, unless the line is there).
        dirty_cap_bytes: dirty data kept before write-back starts at once (`math.inf`: no cap).
        idle_dirty_share: share of the cap that may still be dirty when a kernel starts; the rest was written before.
        clean_share: share of a full set's lines, those next to go, that are written back before they have to.
        slice_hash: where each next ring of lines begins among sets and slices: anywhere (`mix`), at the first
            (`linear`), or by xored address bits (`xor`).
        home_bits: address bits whose parity is a line's home, where there are two partitions.
        persisting_bytes: set-aside for lines loaded with the hint `evict_last`; a number of ways, rounded down, but
            one at least if it is not 0, and all but one at most.
        flush_residue_bytes: dirty data of the profiler's own that is in the L2 after it has flushed it (`l2="flush"`).
    """

    size_bytes: float = field(metadata=key("size", parse_size))
    data_share: float = field(metadata=key("data_share", parse_fraction))
    partitions: int = field(metadata=key("partitions", parse_whole))
    slices: int = field(metadata=key("slices", parse_whole))
    ways: int = field(metadata=key("ways", parse_whole))
    line_bytes: int = field(metadata=key("line", parse_size))
    sector_bytes: int = field(metadata=key("sector", parse_size))
    clock_hz: float = field(metadata=key("clock", parse_frequency))
    slice_bytes_per_clk: float = field(metadata=key("slice_bandwidth", parse_bytes_per_clock))
    reduce_bytes_per_clk: float = field(metadata=key("reduce_bandwidth", parse_bytes_per_clock))
    fragment_bytes_per_clk: float = field(metadata=key("fragment_bandwidth", parse_bytes_per_clock))
    latency_cycles: float = field(metadata=key("latency", parse_cycles))
    replacement: str = field(metadata=key("replacement", choice(*REPLACEMENTS)))
    home_allocation: str = field(metadata=key("home_allocation", choice(*HOME_ALLOCATIONS)))
    write_policy: str = field(metadata=key("write_policy", choice(*WRITE_POLICIES)))
    dirty_cap_bytes: float = field(metadata=key("dirty_cap", parse_size))
    idle_dirty_share: float = field(metadata=key("idle_dirty_share", parse_fraction))
    clean_share: float = field(metadata=key("clean_share", parse_fraction))
    slice_hash: str = field(metadata=key("slice_hash", choice(*SLICE_HASHES)))
    home_bits: tuple[int, ...] = field(metadata=key("home_bits", parse_int_list))
    persisting_bytes: float = field(metadata=key("persisting", parse_size))
    flush_residue_bytes: float = field(metadata=key("flush_residue", parse_size))

    def __post_init__(self) -> None:
        at_least(1, "l2", {"partitions": self.partitions, "slices": self.slices, "ways": self.ways})
        positive("l2", {"clock": self.clock_hz, "slice_bandwidth": self.slice_bytes_per_clk})
        positive("l2", {"reduce_bandwidth": self.reduce_bytes_per_clk})
        positive("l2", {"fragment_bandwidth": self.fragment_bytes_per_clk})
        positive("l2", {"line": self.line_bytes, "sector": self.sector_bytes})
        if self.line_bytes % self.sector_bytes:
            raise ValueError(f"l2.line {self.line_bytes} is not a multiple of l2.sector {self.sector_bytes}")
        if not all(7 <= bit < 39 for bit in self.home_bits) or not self.home_bits:
            raise ValueError("l2.home_bits must be address bits between 7 (lines of 128 bytes) and 38, at least one")
        if self.slices % self.partitions:
            raise ValueError(f"l2.slices {self.slices} is not a multiple of l2.partitions {self.partitions}")

    @property
    def persisting_ways(self) -> int:
        """Most lines of a set that `evict_last` loads can keep for themselves."""
        if not self.persisting_bytes or not self.size_bytes or math.isinf(self.size_bytes):
            return 0
        share = min(1.0, self.persisting_bytes / self.size_bytes)
        return min(max(1, int(share * self.ways)), self.ways - 1)

    @property
    def clean_ways(self) -> int:
        """Lines of a full set, the next to go, that are kept clean: all but one at most."""
        return min(int(self.clean_share * self.ways), self.ways - 1)

    @property
    def slices_per_partition(self) -> int:
        """Slices of one partition."""
        return self.slices // self.partitions

    @property
    def lines(self) -> int:
        """Lines that fit, all partitions together (not for an infinite cache)."""
        if math.isinf(self.size_bytes):
            raise ValueError("l2.size is inf: the cache has no number of lines")
        return int(self.size_bytes) // self.line_bytes

    @property
    def sets_per_slice(self) -> int:
        """Sets of one slice: capacity / (slices x ways x line), rounded down (not for an infinite cache)."""
        return self.lines // (self.slices * self.ways)


@dataclass(frozen=True, slots=True)
class MemorySideCacheSpec:
    """A cache between L2 and DRAM, each partition's part in front of its own channels (AMD calls it Infinity Cache).

    Attributes:
        size_bytes: capacity of all parts together; 0 is none, `math.inf` one that never evicts.
        ways: associativity.
        bandwidth_bytes_per_s: of all parts together, bytes/s (may be inf).
        latency_cycles: load-to-use of a hit in it, SM cycles.
    """

    size_bytes: float = field(metadata=key("size", parse_size))
    ways: int = field(metadata=key("ways", parse_whole))
    bandwidth_bytes_per_s: float = field(metadata=key("bandwidth", parse_bandwidth))
    latency_cycles: float = field(metadata=key("latency", parse_cycles))

    def __post_init__(self) -> None:
        at_least(1, "memory_side_cache", {"ways": self.ways})
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError("memory_side_cache.bandwidth must be more than 0")
