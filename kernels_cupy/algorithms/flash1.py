"""Kernel of `flash1`: FlashAttention-1 forward on mma.sync, a CTA per head."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.kernel import KernelSpec, c_type, require_supported
from traces.launch import Plan
from traces.problem import AttentionProblem

instruction = "mma_sync"

SOURCE = Path(__file__).with_suffix(".cu")
ROWS = 16
MOST_KEYS = 64
"""Scores of a row that a warp keeps in registers."""


def schedule(problem: AttentionProblem, sm_count: int) -> dict[str, str | int | bool]:
    """Beyond d 128, where the trace takes the keys that fit SRAM, a multiple of the warps' 16-key tiles."""
    return {"tile_kv": 64} if problem.dim > 128 else {}


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """The trace's CTAs with its tiles. fp16 or bf16, head dimensions that are multiples of 16 up to 256."""
    p, s, launch = plan.problem, plan.schedule, plan.launches[0]
    formats = {p.dtype, p.kv_dtype, p.v_dtype}
    require_supported(formats in ({"fp16"}, {"bf16"}), f"formats {sorted(formats)} are not fp16 or bf16 throughout")
    require_supported(p.dim % 16 == 0 and p.dim <= 256, f"dim {p.dim} is not a multiple of 16 up to 256")
    require_supported(s.tile_q == ROWS, f"tile_q {s.tile_q} is not {ROWS}, the rows of one product of mma.sync")
    keys, step = s.tile_kv, 16 * s.warps
    require_supported(keys % step == 0, f"tile_kv {keys} is not a multiple of {step}, 16 keys for each of the warps")
    require_supported(
        keys // s.warps <= MOST_KEYS, f"tile_kv {keys} is more than {MOST_KEYS} keys for each of {s.warps} warps"
    )
    running = [t for t in plan.tensors if t.name == "O_running"]
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": p.dim,
        "TILE_KV": keys,
        "STAGES": s.stages,
        "WARPS": s.warps,
        "CAUSAL": int(p.causal),
        "RUNNING": len(running),
        "TOKEN_MAJOR": int(p.layout == "bshd"),
    }
    finished = p.seq - sum(t.rows for t in running)
    sizes = (p.heads, p.group, p.seq, p.seq_kv, finished)
    forward = KernelSpec(
        name=launch.name,
        source=SOURCE,
        entry="flash1_forward",
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=("Q", "K", "V", "O", "LSE", *(t.name for t in running)),
        scalars=(*(np.int32(n) for n in sizes), np.float32(p.scale)),
    )
    return (forward,)
