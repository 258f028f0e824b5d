"""Kernels of `naive_online_softmax`: the products of `naive`, and a softmax that streams rows through shared memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from kernels_cupy.kernel import KernelSpec, require_supported
from kernels_cupy.unfused import row_softmax, three_kernels
from traces.launch import Plan

instruction = "mma_sync"

SOURCE = Path(__file__).with_suffix(".cu")


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """qk, softmax, pv. Head dimensions that are multiples of 8 up to 256, fp16 or bf16, any number of keys."""
    p, s = plan.problem, plan.schedule
    require_supported(
        s.softmax_resident or p.seq_kv > s.softmax_tile,
        f"softmax_resident=false needs more keys than softmax_tile {s.softmax_tile}, not {p.seq_kv}",
    )
    # A row's tiles on chip: all of them, or two; rounded up so that the next row's start is aligned.
    kept = p.seq_kv if s.softmax_resident else min(2 * s.softmax_tile, p.seq_kv)
    columns = -(-kept // 8) * 8
    shared_bytes = s.softmax_rows * columns * p.storage.element_bytes + 8 * (s.softmax_threads // 32)
    defines = {"TILE": s.softmax_tile, "RESIDENT": int(s.softmax_resident), "VECTOR": math.gcd(8, p.seq_kv)}
    return three_kernels(plan, row_softmax(plan, SOURCE, defines, shared_bytes, np.int32(columns)))
