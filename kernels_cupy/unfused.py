"""Attention as three kernels, qk, softmax and pv, for the algorithms that differ in the softmax only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kernels_cupy.gemm import gemm
from kernels_cupy.kernel import KernelSpec, c_type, require_supported
from traces.launch import Plan


def three_kernels(plan: Plan, softmax: KernelSpec) -> tuple[KernelSpec, ...]:
    """The launches of a plan with the tensors and schedule of `naive`, with `softmax` in the middle.

    Raises:
        ValueError: what the kernels do not support.
    """
    p, s = plan.problem, plan.schedule
    for name in ("dim", "dim_v"):
        value = getattr(p, name)
        require_supported(value % 8 == 0 and value <= 256, f"{name} {value} is not a multiple of 8 up to 256")
    require_supported(s.instruction == "mma_sync", f"schedule key instruction is {s.instruction!r}, not mma_sync")
    require_supported(not s.persistent, "schedule key persistent is true; the kernels compute one tile per CTA")
    clusters = (s.cluster_m, s.cluster_n, s.pv_cluster_m, s.pv_cluster_n)
    require_supported(clusters == (1, 1, 1, 1), "clusters are not supported; set cluster_m=1, cluster_n=1, pv_…")
    q, k, v, scores, probabilities, o = (plan.tensor(name) for name in ("Q", "K", "V", "S", "P", "O"))
    return (
        gemm(
            "qk",
            q,
            k,
            scores,
            tile=(s.tile_q, s.tile_kv, s.tile_k),
            stages=s.stages,
            threads=s.gemm_threads,
            raster=s.raster,
            strip=s.swizzle,
            scale=p.scale,
        ),
        softmax,
        gemm(
            "pv",
            probabilities,
            v,
            o,
            tile=(s.pv_tile_q, s.pv_tile_d, s.pv_tile_k),
            stages=s.pv_stages,
            threads=s.gemm_threads,
            b_along_n=True,
            raster=s.pv_raster,
        ),
    )


def row_softmax(
    plan: Plan, source: Path, defines: Mapping[str, int | str], shared_bytes: int, *more: np.generic
) -> KernelSpec:
    """S → P by the kernel `softmax` in `source`, each row by the threads of a CTA over its rows.

    It alone knows sequences of unequal lengths: their tensors are padded to the longest, and the products take all.

    Args:
        defines: besides `T`, `THREADS`, `GROUP` (threads per row), `CAUSAL` and `VARLEN`.
        shared_bytes: per CTA.
        more: arguments after (rows, keys, window, CTAs per head, heads).
    """
    p, schedule = plan.problem, plan.schedule
    formats = {p.dtype, p.kv_dtype, p.v_dtype}
    require_supported(formats in ({"fp16"}, {"bf16"}), f"formats {sorted(formats)} are not fp16 or bf16 throughout")
    blocks = -(-p.seq // schedule.softmax_rows)
    return KernelSpec(
        name="softmax",
        source=source,
        entry="softmax",
        defines={
            "T": c_type(p.storage),
            "CAUSAL": int(p.causal),
            "VARLEN": int(bool(p.lengths)),
            "THREADS": schedule.softmax_threads,
            "GROUP": threads_per_row(plan),
            **defines,
        },
        grid=(p.batch * p.heads * blocks, 1, 1),
        block=(schedule.softmax_threads, 1, 1),
        shared_bytes=shared_bytes,
        tensors=("S", "P"),
        tables=(p.lengths, p.kv_lengths) if p.lengths else (),
        scalars=(*(np.int32(n) for n in (p.seq, p.seq_kv, p.window, blocks, p.heads)), *more),
    )


def threads_per_row(plan: Plan) -> int:
    """Threads that share a row of scores; ValueError unless they are whole warps."""
    threads, rows = plan.schedule.softmax_threads, plan.schedule.softmax_rows
    require_supported(
        threads % (32 * rows) == 0, f"{threads} softmax_threads for {rows} softmax_rows are not whole warps per row"
    )
    return int(threads // rows)
