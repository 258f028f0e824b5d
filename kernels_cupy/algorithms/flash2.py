"""Kernels of `flash2`: FlashAttention-2 forward on mma.sync, and with splits the kernel that merges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.combine import combine
from kernels_cupy.kernel import KernelSpec, aligned_elements, c_type, require_supported, starts
from traces.algorithms.flash2 import splits_of
from traces.launch import Plan
from traces.query_blocks import CTA_ORDERS, heads_per_section
from traces.schedule import KV_ORDERS

instruction = "mma_sync"

SOURCE = Path(__file__).with_suffix(".cu")


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """The trace's CTAs, in its order, with its tiles. fp16 or bf16, head dimensions up to 256."""
    p, s, launch = plan.problem, plan.schedule, plan.launches[0]
    require_supported(s.instruction == "mma_sync", f"schedule key instruction is {s.instruction!r}, not mma_sync")
    formats = {p.dtype, p.kv_dtype, p.v_dtype}
    require_supported(formats in ({"fp16"}, {"bf16"}), f"formats {sorted(formats)} are not fp16 or bf16 throughout")
    for name, dim in (("dim", p.dim), ("dim_v", p.dim_v)):
        require_supported(dim % 16 == 0 and dim <= 256, f"{name} {dim} is not a multiple of 16 up to 256")
    rows = 16 * s.warps
    require_supported(s.tile_q % rows == 0, f"tile_q {s.tile_q} is not a multiple of 16 rows for {s.warps} warps")
    require_supported(s.tile_kv % 16 == 0, f"tile_kv {s.tile_kv} is not a multiple of 16")
    fragments = s.tile_q * (s.tile_kv + p.dim_v) // (32 * s.warps)
    require_supported(
        fragments <= 192,
        f"tiles of {s.tile_q} x {s.tile_kv} keep {fragments} sums per thread of {s.warps} warps, at most 192 fit; "
        "use more warps or smaller tiles",
    )
    splits = splits_of(p, s)
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": p.dim,
        "DIM_V": p.dim_v,
        "TILE_Q": s.tile_q,
        "TILE_KV": s.tile_kv,
        "STAGES": s.stages,
        "WARPS": s.warps,
        "KV_ORDER": KV_ORDERS.index(s.kv_order),
        "CTA_ORDER": CTA_ORDERS.index(s.cta_order),
        "ALIGNED_K": aligned_elements(p.dim),
        "ALIGNED_V": aligned_elements(p.dim_v),
        "CAUSAL": int(p.causal),
        "WINDOW": int(p.window > 0),
        "VARLEN": int(bool(p.lengths)),
        "SPLIT": int(splits > 1),
        "TOKEN_MAJOR": int(p.layout == "bshd"),
    }
    section = s.section_heads or heads_per_section(p)
    sizes = (p.batch, p.heads, p.group, p.seq, p.seq_kv, splits, section, p.window)
    forward = KernelSpec(
        name=launch.name,
        source=SOURCE,
        entry="flash2_forward",
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=("Q", "K", "V", *(("O_partial", "LSE_partial") if splits > 1 else ("O", "LSE"))),
        tables=(starts(p.lengths), starts(p.kv_lengths)) if p.lengths else (),
        scalars=(*(np.int32(n) for n in sizes), np.float32(p.scale)),
    )
    return (forward,) if splits == 1 else (forward, combine(plan, plan.launches[1]))
