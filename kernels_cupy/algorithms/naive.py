"""Kernels of `naive`: two tensor-core products with cp.async pipelines, and between them a row softmax in registers."""

from __future__ import annotations

from pathlib import Path

from kernels_cupy.kernel import KernelSpec, require_supported
from kernels_cupy.unfused import row_softmax, threads_per_row, three_kernels
from traces.launch import Plan

instruction = "mma_sync"

SOURCE = Path(__file__).with_suffix(".cu")
MOST_ITEMS = 6
"""16-byte pieces of a row that a thread keeps in registers: with 1024 threads, which have 64 each, more would spill."""


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """qk, softmax, pv. Head dimensions that are multiples of 8 up to 256, fp16 or bf16, keys up to 49,144."""
    keys, group = plan.problem.seq_kv, threads_per_row(plan)
    # A row that does not start on a 16-byte boundary has up to one piece more than its length says.
    items = -(-(-(-keys // 8) + (keys % 8 != 0)) // group)
    require_supported(
        items <= MOST_ITEMS,
        f"rows of {keys} keys do not fit the registers of {group} threads, at most {group * MOST_ITEMS * 8 - 8} do; "
        "choose more softmax_threads or naive_online_softmax",
    )
    warps = plan.schedule.softmax_threads // 32  # each leaves its part of a row's maximum, then of its sum
    return three_kernels(plan, row_softmax(plan, SOURCE, {"ITEMS": items}, shared_bytes=4 * warps))
