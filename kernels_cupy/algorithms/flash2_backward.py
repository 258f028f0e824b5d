"""Kernels of `flash2_backward`: row sums, gradients of key blocks, dQ's conversion, and sums over query heads.

Gradients are computed by wgmma on Hopper and by mma.sync elsewhere, with the same tiles. Up to 128 dimensions each of
two warpgroups has 64 keys of its own; beyond, in a source of its own, both work on the same 64.
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
WIDE_SOURCE = Path(__file__).with_name("flash2_backward_wide.cu")
MOST_COLUMNS = 128
"""Head dimension up to which gradients of 128 keys fit the registers of two warpgroups."""
PIECE = 64 * 128
"""Elements of dQ's tile for 128 keys: a 64 x 64 piece for each of two warpgroups."""


def schedule(problem: AttentionProblem, sm_count: int) -> dict[str, str | int | bool]:
    """Changes to the trace's default schedule, which is the CUDA release's on mma.sync."""
    return {"instruction": "wgmma", "row_pass": rows_at_once(max(problem.dim, problem.dim_v))}


def tiles(dim: int, dim_v: int) -> tuple[int, int]:
    """Query rows and keys of a tile, the one size that there is for these head dimensions."""
    return (64, 64) if max(dim, dim_v) > MOST_COLUMNS else (PIECE // (64 * -(-dim // 64)), 128)


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """The trace's launches. fp16 or bf16, head dimensions that are multiples of 8 up to 256."""
    p, s = plan.problem, plan.schedule
    formats = {p.dtype, p.kv_dtype, p.v_dtype}
    require_supported(formats in ({"fp16"}, {"bf16"}), f"formats {sorted(formats)} are not fp16 or bf16 throughout")
    for name, dim in (("dim", p.dim), ("dim_v", p.dim_v)):
        require_supported(dim % 8 == 0 and dim <= 256, f"{name} {dim} is not a multiple of 8 up to 256")
    require_supported(s.instruction == "wgmma", f"schedule key instruction is {s.instruction!r}, not wgmma")
    tile_q, tile_kv = tiles(p.dim, p.dim_v)
    sizes = f"the one size for dim {p.dim} and dim_v {p.dim_v}"
    require_supported(s.tile_q == tile_q, f"tile_q {s.tile_q} is not {tile_q}, {sizes}")
    require_supported(s.tile_kv == tile_kv, f"tile_kv {s.tile_kv} is not {tile_kv}, {sizes}")
    require_supported(s.warps == 8, f"warps {s.warps} are not 8, two warpgroups")
    at_once = rows_at_once(max(p.dim, p.dim_v))
    require_supported(s.row_pass == at_once, f"row_pass {s.row_pass} is not {at_once}, the one number for dim {p.dim}")
    parts = p.group > 1
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": p.dim,
        "DIM_V": p.dim_v,
        "ALIGNED_K": aligned_elements(p.dim),
        "ALIGNED_V": aligned_elements(p.dim_v),
        "CAUSAL": int(p.causal),
        "TOKEN_MAJOR": int(p.layout == "bshd"),
        "PARTS": int(parts),
    }
    wide = tile_kv == 64
    if not wide:
        defines["TILE_Q"] = s.tile_q
    before, launch, after, *sums = plan.launches
    main = KernelSpec(
        name=launch.name,
        source=WIDE_SOURCE if wide else SOURCE,
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
