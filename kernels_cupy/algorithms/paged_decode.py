"""Kernels of `paged_decode`: its three variants are the decoding kernel over pages, in three grids."""

from __future__ import annotations

from kernels_cupy.combine import combine, reduce_partitions
from kernels_cupy.decoding import part_kernel, preferred_tiles
from kernels_cupy.kernel import KernelSpec
from traces.launch import Plan
from traces.problem import AttentionProblem

instruction = "mma_sync"


def schedule(problem: AttentionProblem, sm_count: int) -> dict[str, int | str]:
    """`preferred_tiles`."""
    return preferred_tiles(problem, packed=True, sm_count=sm_count)


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """fp16 or bf16, the cache also in int8 or fp8; head dimensions up to 256, of latents more; pages of any size."""
    first, *rest = plan.launches
    if plan.schedule.variant == "packed":
        return part_kernel(plan, first, packed=True), *(combine(plan, launch) for launch in rest)
    part_keys = plan.schedule.partition if plan.schedule.variant == "v2" else 0
    parts = part_kernel(plan, first, packed=False, part_keys=part_keys, parts_slowest=True)
    return parts, *(reduce_partitions(plan, launch) for launch in rest)
