"""A GPU as the simulator sees it: immutable figures in base units, with the unit in every name.

Where a figure comes from is said in the GPU file, next to the figure, and kept in `GpuSpec.sources`.
"Cycles" are SM cycles unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

from gpusim.memory.l2.policies import COALESCERS
from gpusim.spec.caches import L1Spec, L2Spec, MemorySideCacheSpec
from gpusim.spec.checks import at_least, positive
from gpusim.spec.hbm import HbmSpec, HbmTiming
from gpusim.spec.schema import choice, key, section, table, text
from gpusim.spec.units import (
    parse_bandwidth,
    parse_bytes_per_clock,
    parse_cycles,
    parse_flag,
    parse_fraction,
    parse_frequency,
    parse_int_list,
    parse_size,
    parse_whole,
)

__all__ = [
    "PRECISIONS",
    "Clock",
    "GpuSpec",
    "HbmSpec",
    "HbmTiming",
    "L1Spec",
    "L2Spec",
    "MemorySideCacheSpec",
    "NocSpec",
    "SmSpec",
]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Precisions with a tensor-core rate of their own."""

Clock = Literal["boost", "rated", "sustained"]
"""Which SM clock a peak is quoted at; see `SmSpec`."""


@dataclass(frozen=True, slots=True)
class SmSpec:
    """The streaming multiprocessors. All figures are per SM unless said otherwise.

    Attributes:
        count: SMs of the GPU.
        clock_hz: highest clock; the one cycles are turned into time with.
        rated_clock_hz: clock behind the data sheet's FLOPS.
        sustained_clock_hz: clock under continuous tensor-core load.
        shared_memory_bytes: shared memory that CTAs may use together.
        shared_memory_per_cta_bytes: most that one CTA may use.
        registers: 32-bit registers.
        max_threads, max_ctas: resident threads and CTAs.
        read_port_bytes_per_clk: what one SM can receive from the L2, bytes per cycle.
        write_port_bytes_per_clk: what one SM can send, bytes per cycle.
        reduce_port_bytes_per_clk: what of it an SM reaches when it adds whole lines in the L2,
        fragment_port_bytes_per_clk: and when each request adds 32 bytes, as mma leaves them.
        max_inflight_bytes: reads outstanding at once, bytes (bounds one SM's bandwidth by latency).
        tensor_flops: dense tensor-core FLOP per cycle by precision; 0 means that precision runs on the FP32 lanes.
        mma_sync_efficiency, wgmma_efficiency: share of `tensor_flops` that the instruction family can reach.
        has_wgmma: whether matrices can be multiplied straight from shared memory (Hopper).
        fp32_lanes: FP32 fused multiply-adds per cycle.
        exp_per_clk: exponentials per cycle.
        shared_bytes_per_clk: shared-memory bandwidth, bytes per cycle.
        shared_latency_cycles: shared-memory load-to-use.
        cta_launch_interval_cycles: cycles between two CTA launches, whole GPU.
        tpc_stagger_cycles: how much later than the first the second SM of a TPC (odd SM number) gets its first CTA.
        cta_turnover_cycles: from a CTA's end to the first instruction of the next one in its place,
        warp_launch_cycles: and for each of that one's warps.
        kernel_overhead_cycles: from launch to the first CTA, plus the drain at the end.
        gpcs: graphics processing clusters, whose SMs share a port to the L2 (see `NocSpec`).
        cpcs: CPCs (compute processing clusters) of a GPC.
        gpc_of_sm: GPC of each SM.
        cpc_of_sm: CPC of each SM.
        cta_order: SM of the 0th, 1st, 2nd … CTA of an empty GPU, each SM once; more CTAs go round again.
        partition_of_sm: L2 partition that each SM is attached to.
        merge_group_of_sm: SMs of equal number share a read coalescer (see `NocSpec`).
        filled_first: SMs of the CTA order that a grid fills before the others get a CTA.
    """

    count: int = field(metadata=key("count", parse_whole))
    clock_hz: float = field(metadata=key("clock", parse_frequency))
    rated_clock_hz: float = field(metadata=key("rated_clock", parse_frequency))
    sustained_clock_hz: float = field(metadata=key("sustained_clock", parse_frequency))
    shared_memory_bytes: int = field(metadata=key("shared_memory", parse_size))
    shared_memory_per_cta_bytes: int = field(metadata=key("shared_memory_per_cta", parse_size))
    registers: int = field(metadata=key("registers", parse_whole))
    max_threads: int = field(metadata=key("max_threads", parse_whole))
    max_ctas: int = field(metadata=key("max_ctas", parse_whole))
    read_port_bytes_per_clk: float = field(metadata=key("read_port", parse_bytes_per_clock))
    write_port_bytes_per_clk: float = field(metadata=key("write_port", parse_bytes_per_clock))
    reduce_port_bytes_per_clk: float = field(metadata=key("reduce_port", parse_bytes_per_clock))
    fragment_port_bytes_per_clk: float = field(metadata=key("fragment_port", parse_bytes_per_clock))
    max_inflight_bytes: int = field(metadata=key("max_inflight", parse_size))
    tensor_flops: Mapping[str, int] = field(hash=False, metadata=table("tensor_flops", PRECISIONS, parse_whole))
    mma_sync_efficiency: float = field(metadata=key("mma_sync_efficiency", parse_fraction))
    wgmma_efficiency: float = field(metadata=key("wgmma_efficiency", parse_fraction))
    has_wgmma: bool = field(metadata=key("has_wgmma", parse_flag))
    fp32_lanes: int = field(metadata=key("fp32_lanes", parse_whole))
    exp_per_clk: int = field(metadata=key("exp_per_clk", parse_whole))
    shared_bytes_per_clk: float = field(metadata=key("shared_bandwidth", parse_bytes_per_clock))
    shared_latency_cycles: float = field(metadata=key("shared_latency", parse_cycles))
    cta_launch_interval_cycles: float = field(metadata=key("cta_launch_interval", parse_cycles))
    tpc_stagger_cycles: float = field(metadata=key("tpc_stagger", parse_cycles))
    cta_turnover_cycles: float = field(metadata=key("cta_turnover", parse_cycles))
    warp_launch_cycles: float = field(metadata=key("warp_launch", parse_cycles))
    kernel_overhead_cycles: float = field(metadata=key("kernel_overhead", parse_cycles))
    gpcs: int = field(metadata=key("gpcs", parse_whole))
    cpcs: int = field(metadata=key("cpcs", parse_whole))
    gpc_of_sm: tuple[int, ...] = field(metadata=key("gpc_of_sm", parse_int_list))
    cpc_of_sm: tuple[int, ...] = field(metadata=key("cpc_of_sm", parse_int_list))
    cta_order: tuple[int, ...] = field(metadata=key("cta_order", parse_int_list))
    partition_of_sm: tuple[int, ...] = field(metadata=key("partition_of_sm", parse_int_list))
    merge_group_of_sm: tuple[int, ...] = field(metadata=key("merge_group_of_sm", parse_int_list))
    filled_first: int = field(metadata=key("filled_first", parse_whole))

    def __post_init__(self) -> None:
        at_least(1, "sm", {"count": self.count, "max_threads": self.max_threads, "max_ctas": self.max_ctas})
        at_least(1, "sm", {"gpcs": self.gpcs, "cpcs": self.cpcs})
        at_least(1, "sm", {"registers": self.registers, "fp32_lanes": self.fp32_lanes})
        positive("sm", {"clock": self.clock_hz, "rated_clock": self.rated_clock_hz})
        positive("sm", {"sustained_clock": self.sustained_clock_hz, "exp_per_clk": self.exp_per_clk})
        positive("sm", {"read_port": self.read_port_bytes_per_clk, "write_port": self.write_port_bytes_per_clk})
        positive("sm", {"reduce_port": self.reduce_port_bytes_per_clk})
        positive("sm", {"fragment_port": self.fragment_port_bytes_per_clk})
        positive("sm", {"max_inflight": self.max_inflight_bytes, "shared_bandwidth": self.shared_bytes_per_clk})
        positive("sm", {"mma_sync_efficiency": self.mma_sync_efficiency, "wgmma_efficiency": self.wgmma_efficiency})
        positive("sm", {"shared_memory": self.shared_memory_bytes})
        if self.shared_memory_per_cta_bytes > self.shared_memory_bytes:
            raise ValueError(
                f"sm.shared_memory_per_cta {self.shared_memory_per_cta_bytes} is more than "
                f"sm.shared_memory {self.shared_memory_bytes}"
            )
        if any(not 0 <= gpc < self.gpcs for gpc in self.gpc_of_sm):
            raise ValueError(f"sm.gpc_of_sm holds a number outside 0 to {self.gpcs - 1} (sm.gpcs)")
        if sorted(self.cta_order) != list(range(self.count)):
            raise ValueError(f"sm.cta_order must hold each SM from 0 to {self.count - 1} once")
        for name, values in (
            ("partition_of_sm", self.partition_of_sm),
            ("gpc_of_sm", self.gpc_of_sm),
            ("merge_group_of_sm", self.merge_group_of_sm),
        ):
            if len(values) != self.count:
                raise ValueError(f"sm.{name} must have one entry for each of {self.count} SMs, not {len(values)}")

    def placement(self, ctas: int) -> list[int]:
        """SMs of the first CTAs of a grid of `ctas` on an empty GPU, in the order of the CTAs.

        A grid that leaves SMs idle fills the first `filled_first` SMs of the order. What is left goes to the GPCs in
        turn, to the first SMs of their TPCs, and when these are taken everywhere, to the second.
        """
        if ctas >= self.count:
            return list(self.cta_order)
        first, rest = self.cta_order[: self.filled_first], self.cta_order[self.filled_first :]
        turns = [sm for second in (0, 1) for sm in first if sm % 2 == second]
        for second in (0, 1):
            members: list[list[int]] = [[] for _ in range(self.gpcs)]
            for sm in rest:
                if sm % 2 == second:
                    members[self.gpc_of_sm[sm]].append(sm)
            turns += [sm for turn in zip_longest(*members) for sm in turn if sm is not None]
        chosen = set(turns[:ctas])
        return [sm for sm in self.cta_order if sm in chosen]


@dataclass(frozen=True, slots=True)
class NocSpec:
    """What lies between the SMs and the L2, and between the L2 partitions.

    Attributes:
        coalescer: `merge` combines reads of one line by the SMs of a merge group before the L2, `none` does not.
        merge_width: most SM requests that become one L2 request.
        merge_window_cycles: how far apart in time requests may be and still be merged, mean over lines.
        gpc_port_bytes_per_clk: what the SMs of a GPC together receive from the L2, bytes per SM cycle.
        cpc_uplink, gpc_uplink, uplink: what the SMs of a CPC, of a GPC and all of them can send to the L2 together, as
            shares of what they could one by one (a large CPC's, an average GPC's).
        fabric_bytes_per_s: bandwidth between the L2 partitions, all directions together, each having an equal part to
            itself, bytes/s (may be inf).
        fabric_latency_cycles: extra latency of a request that crosses, there and back.
        cpc_step_cycles: how much longer requests take to the L2 from each next CPC of a GPC,
        tpc_step_cycles: and how much less from each next TPC of a CPC.
    """

    coalescer: str = field(metadata=key("coalescer", choice(*COALESCERS)))
    merge_width: int = field(metadata=key("merge_width", parse_whole))
    merge_window_cycles: float = field(metadata=key("merge_window", parse_cycles))
    gpc_port_bytes_per_clk: float = field(metadata=key("gpc_port", parse_bytes_per_clock))
    cpc_uplink: float = field(metadata=key("cpc_uplink", parse_fraction))
    gpc_uplink: float = field(metadata=key("gpc_uplink", parse_fraction))
    uplink: float = field(metadata=key("uplink", parse_fraction))
    fabric_bytes_per_s: float = field(metadata=key("fabric_bandwidth", parse_bandwidth))
    fabric_latency_cycles: float = field(metadata=key("fabric_latency", parse_cycles))
    cpc_step_cycles: float = field(metadata=key("cpc_step", parse_cycles))
    tpc_step_cycles: float = field(metadata=key("tpc_step", parse_cycles))

    def __post_init__(self) -> None:
        at_least(1, "noc", {"merge_width": self.merge_width})
        positive("noc", {"gpc_port": self.gpc_port_bytes_per_clk})
        positive("noc", {"cpc_uplink": self.cpc_uplink, "gpc_uplink": self.gpc_uplink, "uplink": self.uplink})
        if not self.fabric_bytes_per_s > 0:
            raise ValueError("noc.fabric_bandwidth must be more than 0")


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU.

    Attributes:
        name: preset or file name, as shown in tables.
        architecture: `Hopper`, `Ampere`, …
        compute_capability: CUDA compute capability, `9.0`.
        sm, l1, noc, l2, memory_side_cache, hbm: the sections of a GPU file.
        sources: dotted key → where its value comes from.
        document: dotted key → the value as written in the file (with overrides), what `with_overrides` starts from.
    """

    name: str = field(metadata=key("name", text))
    architecture: str = field(metadata=key("architecture", text))
    compute_capability: str = field(metadata=key("compute_capability", text))
    sm: SmSpec = field(metadata=section("sm", SmSpec))
    l1: L1Spec = field(metadata=section("l1", L1Spec))
    noc: NocSpec = field(metadata=section("noc", NocSpec))
    l2: L2Spec = field(metadata=section("l2", L2Spec))
    memory_side_cache: MemorySideCacheSpec = field(metadata=section("memory_side_cache", MemorySideCacheSpec))
    hbm: HbmSpec = field(metadata=section("hbm", HbmSpec))
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(not 0 <= p < self.l2.partitions for p in self.sm.partition_of_sm):
            raise ValueError(f"sm.partition_of_sm holds a number outside 0 to {self.l2.partitions - 1} (l2.partitions)")
        if self.hbm.pseudo_channels_total % self.l2.partitions:
            raise ValueError(
                f"hbm.channels {self.hbm.channels} x {self.hbm.pseudo_channels} pseudo-channels do not divide evenly "
                f"over l2.partitions {self.l2.partitions}"
            )

    def clock_hz(self, clock: Clock = "boost") -> float:
        """SM clock in hertz: `boost` (highest), `rated` (data sheet) or `sustained` (under tensor load)."""
        if clock == "boost":
            return self.sm.clock_hz
        return self.sm.rated_clock_hz if clock == "rated" else self.sm.sustained_clock_hz

    def tensor_flops_per_clk(self, dtype: str) -> int:
        """Dense tensor-core FLOP per cycle and SM for operands of `dtype`; 0 where the FP32 lanes do the work."""
        precision = "fp8" if dtype.startswith("fp8") else dtype
        if precision not in PRECISIONS:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(PRECISIONS)}")
        return self.sm.tensor_flops.get(precision, 0)

    def peak_flops(self, dtype: str, clock: Clock = "boost") -> float:
        """Dense peak FLOP/s for matrix products of `dtype` (2 per clock and FP32 lane where tensor cores have none)."""
        per_clk = self.tensor_flops_per_clk(dtype) or 2 * self.sm.fp32_lanes
        return self.sm.count * per_clk * self.clock_hz(clock)

    def ridge_point(self, dtype: str) -> float:
        """FLOP per HBM byte at which rated compute and peak HBM bandwidth balance (A100 fp16: 153)."""
        return self.peak_flops(dtype, "rated") / self.hbm.bandwidth_bytes_per_s

    @property
    def l2_bytes_per_s(self) -> float:
        """Peak of all L2 slices together, bytes/s."""
        return self.l2.slices * self.l2.slice_bytes_per_clk * self.l2.clock_hz

    @property
    def l2_bytes_per_clk(self) -> float:
        """Peak of all L2 slices together, bytes per SM cycle."""
        return self.l2_bytes_per_s / self.sm.clock_hz

    @property
    def fabric_bytes_per_clk(self) -> float:
        """Bandwidth between the partitions, bytes per SM cycle."""
        return self.noc.fabric_bytes_per_s / self.sm.clock_hz

    @property
    def hbm_bytes_per_clk(self) -> float:
        """HBM peak, bytes per SM cycle."""
        return self.hbm.bandwidth_bytes_per_s / self.sm.clock_hz

    def cycles(self, nanoseconds: float) -> float:
        """`nanoseconds` in SM cycles."""
        return nanoseconds * self.sm.clock_hz * 1e-9

    def at_clock(self, clock_hz: float) -> GpuSpec:
        """The same GPU with its SMs running at `clock_hz`; rated and sustained clocks stay what they are."""
        return replace(self, sm=replace(self.sm, clock_hz=clock_hz))

    def with_overrides(self, overrides: Sequence[str]) -> GpuSpec:
        """The GPU with `section.key=value` changes, as `--set` makes them; UserError on a bad one."""
        from gpusim.spec.load import override

        return override(self, overrides)
