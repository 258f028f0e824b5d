"""Conservation: what enters a level leaves it. Run with `--check`, and in the tests."""

from __future__ import annotations

from gpusim.counters import C
from gpusim.memory.state import MemorySystem
from gpusim.result import KernelResult
from traces.launch import KernelLaunch, Workload


class ConservationError(AssertionError):
    """A level's books do not balance: a bug in the simulator."""


def check_kernel(kernel: KernelResult, plan: Workload, launch: KernelLaunch, memory: MemorySystem) -> None:
    """Verify one kernel's counters, per tensor.

    Raises:
        ConservationError: names the kernel, the tensor, the law and both sides.
    """
    for tensor in plan.tensors:
        n = {c: int(kernel.counts[tensor.index, c]) for c in C}
        _equal(
            kernel.name,
            tensor.name,
            "hits + misses = reads + writes",
            n[C.L2_HIT] + n[C.L2_MISS],
            n[C.L2_READ] + n[C.L2_WRITE],
        )
        _equal(kernel.name, tensor.name, "writes into L2 = writes out of SMs", n[C.L2_WRITE], n[C.SM_WRITE])
        _equal(
            kernel.name,
            tensor.name,
            "misses = far hits + memory-side hits + DRAM reads",
            n[C.L2_MISS],
            n[C.FAR_HIT] + n[C.MSC_HIT] + n[C.DRAM_READ],
        )
        if kernel.memory_side:
            _equal(kernel.name, tensor.name, "memory-side misses = DRAM reads", n[C.MSC_MISS], n[C.DRAM_READ])
        if n[C.L2_READ] > n[C.SM_READ]:
            raise ConservationError(f"{kernel.name}, {tensor.name}: L2 reads exceed what SMs received")
        if n[C.L2_REDUCE] > n[C.L2_WRITE]:
            raise ConservationError(f"{kernel.name}, {tensor.name}: reductions exceed writes into L2, which hold them")
        if n[C.L2_MISS] > n[C.L2_READ] + n[C.L2_REDUCE]:
            raise ConservationError(f"{kernel.name}, {tensor.name}: misses exceed reads and reductions")
    held = memory.dirty_sectors()
    booked = int(memory.values["dirty_sectors"].sum())
    _equal(kernel.name, "all", "dirty sectors in the tags = dirty sectors booked", held, booked)


def _equal(kernel: str, tensor: str, law: str, left: int, right: int) -> None:
    if left != right:
        raise ConservationError(f"{kernel}, {tensor}: {law} fails: {left} against {right} sectors")
