"""Kernel of `decode`: a CTA per query head."""

from __future__ import annotations

from kernels_cupy.decoding import part_kernel, preferred_tiles
from kernels_cupy.kernel import KernelSpec
from traces.launch import Plan
from traces.problem import AttentionProblem

instruction = "mma_sync"


def schedule(problem: AttentionProblem, sm_count: int) -> dict[str, int | str]:
    """`preferred_tiles`."""
    return preferred_tiles(problem, packed=False, sm_count=sm_count)


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """fp16 or bf16, the cache also in int8 or fp8; head dimensions up to 256, of latents more."""
    return (part_kernel(plan, plan.launches[0], packed=False),)
