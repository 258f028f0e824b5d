"""Kernels of `flash2_backward`: row sums, gradients of key blocks, dQ's conversion, and sums over query heads.

The gradients are computed by wgmma on Hopper and by mma.sync elsewhere, with the same tiles.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.gradient_rows import convert, row_sums, rows_at_once, sum_heads
from kernels_cupy.kernel import KernelSpec, aligned_elements, c_type, require_supported
from traces.launch import Plan
from traces.problem import AttentionProblem

instruction = "wgmma"

SOURCE = Path(__file__).with_suffix(".cu")
PIECE = 64 * 128
"""Elements of dQ's tile: a 64 x 64 piece for each of two warpgroups."""


def schedule(problem: AttentionProblem, sm_count: int) -> dict[str, str | int | bool]:
    """Changes to the trace's default schedule, which is the CUDA release's on mma.sync."""
    return {"instruction": "wgmma", "row_pass": rows_at_once(max(problem.dim, problem.dim_v))}


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """The trace's launches. fp16 or bf16, head dimensions that are multiples of 8 up to 128."""
    p, s = plan.problem, plan.schedule
    formats = {p.dtype, p.kv_dtype, p.v_dtype}
    require_supported(formats in ({"fp16"}, {"bf16"}), f"formats {sorted(formats)} are not fp16 or bf16 throughout")
    for name, dim in (("dim", p.dim), ("dim_v", p.dim_v)):
        require_supported(dim % 8 == 0 and dim <= 128, f"{name} {dim} is not a multiple of 8 up to 128")
    require_supported(s.instruction == "wgmma", f"schedule key instruction is {s.instruction!r}, not wgmma")
    require_supported((s.tile_kv, s.warps) == (128, 8), "key blocks are not of 128 keys for 8 warps (tile_kv, warps)")
    tile_q = PIECE // (64 * -(-p.dim // 64))
    require_supported(s.tile_q == tile_q, f"tile_q {s.tile_q} is not {tile_q}, the one size for dim {p.dim}")
    at_once = rows_at_once(max(p.dim, p.dim_v))
    require_supported(s.row_pass == at_once, f"row_pass {s.row_pass} is not {at_once}, the one number for dim {p.dim}")
    parts = p.group > 1
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": p.dim,
        "DIM_V": p.dim_v,
        "TILE_Q": s.tile_q,
        "ALIGNED_K": aligned_elements(p.dim),
        "ALIGNED_V": aligned_elements(p.dim_v),
        "CAUSAL": int(p.causal),
        "TOKEN_MAJOR": int(p.layout == "bshd"),
        "PARTS": int(parts),
    }
    before, launch, after, *sums = plan.launches
    main = KernelSpec(
        name=launch.name,
        source=SOURCE,
        entry="flash2_backward",
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=("Q", "dO", "LSE", "D", "dQ_sum", "K", "V", *(("dK_heads", "dV_heads") if parts else ("dK", "dV"))),
        scalars=(*(np.int32(n) for n in (p.batch, p.heads, p.group, p.seq, p.seq_kv)), np.float32(p.scale)),
    )
    totals = (sum_heads(plan, k, name, s.row_tile) for k, name in zip(sums, ("dK", "dV"), strict=False))
    return row_sums(plan, before, s.row_tile), main, convert(plan, after, s.row_tile), *totals
