"""How many CTAs of a kernel fit on one SM (CUDA occupancy rules)."""

from __future__ import annotations

from gpusim.errors import UserError
from gpusim.spec import GpuSpec
from traces.launch import CtaResources

RESERVED_SHARED_BYTES = 1024
"""Shared memory that the system takes per CTA (CUDA C++ programming guide, compute capability 8.x and later)."""
REGISTER_UNIT = 256
"""Registers are given to warps in units of this many."""


def ctas_per_sm(gpu: GpuSpec, need: CtaResources, kernel: str) -> int:
    """Resident CTAs per SM.

    Raises:
        UserError: a single CTA does not fit; names what it exceeds.
    """
    sm = gpu.sm
    if need.shared_bytes > sm.shared_memory_per_cta_bytes:
        raise UserError(
            f"tile sizes of kernel {kernel} need {need.shared_bytes} bytes of shared memory per CTA, "
            f"but {gpu.name} allows {sm.shared_memory_per_cta_bytes}; use smaller tiles or fewer stages"
        )
    warps = -(-need.threads // 32)
    registers = warps * (-(-need.registers_per_thread * 32 // REGISTER_UNIT) * REGISTER_UNIT)
    limits = {
        "threads": sm.max_threads // need.threads,
        "registers": sm.registers // registers,
        "shared memory": sm.shared_memory_bytes // max(1, need.shared_bytes + RESERVED_SHARED_BYTES),
        "CTA slots": sm.max_ctas,
    }
    tightest = min(limits, key=lambda name: limits[name])
    if limits[tightest] < 1:
        raise UserError(
            f"one CTA of kernel {kernel} ({need.threads} threads) exceeds the {tightest} of an SM of {gpu.name}"
        )
    return limits[tightest]
