"""What a simulation returns: counters per kernel, level and tensor, the timeline, and the JSON contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusim.closed_form import closed_form
from gpusim.counters import C
from gpusim.memory.sizes import SECTOR_BYTES
from gpusim.spec import GpuSpec
from traces.cta_times import CtaTimes
from traces.launch import Plan, Workload


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes at every level, named as in the JSON contract.

    A tensor's shared-memory bytes are its tiles landing, and operands fetched from them; what warps exchange during row
    work belongs to no tensor and is in a kernel's figures alone.
    """

    dram_read_bytes: int
    dram_write_bytes: int
    l2_read_bytes: int
    l2_write_bytes: int
    fabric_bytes: int
    sm_read_bytes: int
    sm_write_bytes: int
    shared_read_bytes: int
    shared_write_bytes: int
    dirty_bytes_left: int
    memory_side_hit_bytes: int | None = None
    """None without a memory-side cache."""

    @classmethod
    def from_counts(cls, row: NDArray[np.int64], dirty_bytes: int, memory_side: bool = False) -> Traffic:
        """From a counter row in sectors (`gpusim.counters.C`)."""
        sectors = row.astype(int) * SECTOR_BYTES
        return cls(
            dram_read_bytes=int(sectors[C.DRAM_READ]),
            dram_write_bytes=int(sectors[C.DRAM_WRITE]),
            l2_read_bytes=int(sectors[C.L2_READ]),
            l2_write_bytes=int(sectors[C.L2_WRITE]),
            fabric_bytes=int(sectors[C.FABRIC_READ] + sectors[C.FABRIC_WRITE]),
            sm_read_bytes=int(sectors[C.SM_READ]),
            sm_write_bytes=int(sectors[C.SM_WRITE]),
            shared_read_bytes=int(sectors[C.SHARED_READ]),
            shared_write_bytes=int(sectors[C.SHARED_WRITE]),
            dirty_bytes_left=dirty_bytes,
            memory_side_hit_bytes=int(sectors[C.MSC_HIT]) if memory_side else None,
        )

    def to_dict(self) -> dict[str, int]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One kernel's counters.

    Attributes:
        counts: [tensor, counter] sectors (`gpusim.counters.C`).
        dirty_bytes: dirty bytes left in the L2 at its end, by tensor.
        start_cycle, cycles: when it started and how long it ran (launch overhead included), SM cycles.
        flops: tensor-core operations executed, padding included.
        shared_read_bytes, shared_write_bytes: shared-memory traffic.
        tensor_busy_cycles: cycles that tensor cores were occupied, summed over SMs.
        clock_hz: SM clock it ran at: sustained with tensor-core work, else boost.
        cta_times: of its CTAs, if asked for.
        idle_write_by_tensor: bytes written to DRAM between the kernel before and this one, in no kernel's counters.
    """

    name: str
    ctas: int
    ctas_per_sm: int
    start_cycle: float
    cycles: float
    flops: int
    shared_read_bytes: int
    shared_write_bytes: int
    tensor_busy_cycles: float
    counts: NDArray[np.int64]
    dirty_bytes: dict[str, int]
    clock_hz: float
    tensor_utilisation: float
    dram_peak_bytes_per_cycle: float
    memory_side: bool = False
    """Whether the GPU has a memory-side cache."""
    cta_times: CtaTimes | None = None
    idle_write_by_tensor: dict[str, int] = field(default_factory=dict)

    @property
    def idle_write_bytes(self) -> int:
        """Written to DRAM between the kernel before and this one."""
        return sum(self.idle_write_by_tensor.values())

    @property
    def traffic(self) -> Traffic:
        return Traffic.from_counts(self.counts.sum(axis=0), sum(self.dirty_bytes.values()), self.memory_side)

    @property
    def l2_hit_rate(self) -> float:
        """hit / (hit + miss) of L2 sectors, stores counted as hits; 0 without any."""
        hits, misses = (int(self.counts[:, c].sum()) for c in (C.L2_HIT, C.L2_MISS))
        return hits / (hits + misses) if hits + misses else 0.0

    @property
    def time_us(self) -> float:
        return self.cycles / self.clock_hz * 1e6

    def __getattr__(self, name: str) -> int:
        """Byte fields of the contract: `kernel.dram_read_bytes` and so on."""
        if name in Traffic.__slots__:
            return int(getattr(self.traffic, name) or 0)
        raise AttributeError(name)

    @property
    def dram_utilisation(self) -> float:
        """Share of peak DRAM bandwidth used, reads and writes."""
        moved = self.dram_read_bytes + self.dram_write_bytes
        return moved / (self.cycles * self.dram_peak_bytes_per_cycle) if self.cycles else 0.0

    def to_dict(self, tensors: tuple[str, ...]) -> dict[str, Any]:
        """K of the JSON contract."""
        return {
            "name": self.name,
            "ctas": self.ctas,
            "ctas_per_sm": self.ctas_per_sm,
            "start_cycle": self.start_cycle,
            "cycles": self.cycles,
            "time_us": self.time_us,
            "flops": self.flops,
            **self.traffic.to_dict(),
            "idle_write_bytes": self.idle_write_bytes,
            "l2_hit_rate": self.l2_hit_rate,
            "shared_read_bytes": self.shared_read_bytes,
            "shared_write_bytes": self.shared_write_bytes,
            "tensor_utilisation": self.tensor_utilisation,
            "dram_utilisation": self.dram_utilisation,
            "by_tensor": {
                name: Traffic.from_counts(self.counts[i], self.dirty_bytes[name], self.memory_side).to_dict()
                for i, name in enumerate(tensors)
            },
        }


@dataclass(frozen=True, slots=True)
class Timeline:
    """Binned traffic and activity.

    Attributes:
        bin_cycles: width of a bin.
        bytes: level → tensor → bytes per bin.
        activity: name → value per bin (cycles summed over SMs, or sectors).
    """

    bin_cycles: float
    bytes: dict[str, dict[str, NDArray[np.float64]]]
    activity: dict[str, NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        names = {
            "tensor_busy": "tensor_busy_cycles",
            "vector_busy": "vector_busy_cycles",
            "memory_wait": "memory_wait_cycles",
        }
        return {
            "bin_cycles": self.bin_cycles,
            "bytes": {lv: {t: v.tolist() for t, v in by.items()} for lv, by in self.bytes.items()},
            **{names.get(name, name): v.tolist() for name, v in self.activity.items()},
        }


@dataclass(frozen=True, slots=True)
class Result:
    """A simulated plan, or any other workload, on a GPU."""

    gpu: GpuSpec
    plan: Workload
    l2_start: str
    kernels: tuple[KernelResult, ...]
    timeline: Timeline
    wall_seconds: float

    @property
    def cycles(self) -> float:
        """First start to last end, SM cycles."""
        last = self.kernels[-1]
        return last.start_cycle + last.cycles - self.kernels[0].start_cycle

    @property
    def counts(self) -> NDArray[np.int64]:
        """[tensor, counter] sectors over all kernels."""
        return np.sum([k.counts for k in self.kernels], axis=0)

    @property
    def sectors_per_second(self) -> float:
        """SM-port sectors simulated per second of wall time."""
        counts = self.counts.sum(axis=0)
        return float(counts[C.SM_READ] + counts[C.SM_WRITE]) / max(self.wall_seconds, 1e-9)

    def total(self) -> KernelResult:
        """All kernels as one."""
        first, last = self.kernels[0], self.kernels[-1]
        cycles = sum(k.cycles for k in self.kernels)
        microseconds = sum(k.time_us for k in self.kernels)
        peak_bytes = sum(k.dram_peak_bytes_per_cycle * k.cycles for k in self.kernels)
        weighted = sum(k.tensor_utilisation * k.cycles for k in self.kernels)
        return KernelResult(
            "total",
            sum(k.ctas for k in self.kernels),
            0,
            first.start_cycle,
            cycles,
            sum(k.flops for k in self.kernels),
            sum(k.shared_read_bytes for k in self.kernels),
            sum(k.shared_write_bytes for k in self.kernels),
            sum(k.tensor_busy_cycles for k in self.kernels),
            self.counts,
            last.dirty_bytes,
            cycles / microseconds * 1e6,
            weighted / cycles,
            peak_bytes / cycles,
            first.memory_side,
            idle_write_by_tensor={
                name: sum(k.idle_write_by_tensor[name] for k in self.kernels) for name in last.idle_write_by_tensor
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract, which only an attention plan fulfils."""
        plan = self.plan
        if not isinstance(plan, Plan):
            raise TypeError(f"{plan.algorithm} is no attention plan: it has no problem to report")
        names = tuple(self.kernels[0].dirty_bytes)  # the plan's tensors, and what a flush leaves
        gpu, dtype = self.gpu, plan.problem.dtype
        whole = self.total()
        total = whole.to_dict(names)
        return {
            "gpu": gpu.name,
            "algorithm": plan.algorithm,
            "problem": plan.problem.to_dict(),
            "schedule": plan.schedule.to_dict(),
            "l2": self.l2_start,
            "kernels": [k.to_dict(names) for k in self.kernels],
            "total": {k: v for k, v in total.items() if k != "by_tensor"},
            "by_tensor": total["by_tensor"],
            "analytic": closed_form(plan, gpu),
            "machine": {
                "sm_count": gpu.sm.count,
                "clock_hz": whole.clock_hz,
                "peak_flops": gpu.peak_flops(dtype),
                "hbm_bytes_per_second": gpu.hbm.bandwidth_bytes_per_s,
                "l2_bytes_per_second": gpu.l2_bytes_per_s,
                "l2_bytes": gpu.l2.size_bytes,
            },
            "timeline": self.timeline.to_dict(),
            "wall_seconds": self.wall_seconds,
            "sectors_per_second": self.sectors_per_second,
        }
