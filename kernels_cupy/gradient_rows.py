"""The kernels on rows around a backward pass (`traces.gradients`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.kernel import KernelSpec, c_type
from traces.gradients import ROW_THREADS
from traces.launch import KernelLaunch, Plan

SOURCE = Path(__file__).with_suffix(".cu")


def rows_at_once(dim: int) -> int:
    """Rows that a CTA has under way: its threads take 8 columns each."""
    return max(1, 8 * ROW_THREADS // dim)


def row_sums(plan: Plan, launch: KernelLaunch, rows: int) -> KernelSpec:
    """D = rowsum(dO O), and zeros where dQ is summed."""
    p = plan.problem
    sizes = (p.batch, p.heads, p.seq)
    return _spec(plan, launch, rows, "row_sums", p.dim, ("O", "dO", "D", "dQ_sum"), tuple(map(np.int32, sizes)))


def convert(plan: Plan, launch: KernelLaunch, rows: int) -> KernelSpec:
    """dQ = scale x its sum."""
    p = plan.problem
    scalars = (*map(np.int32, (p.batch, p.heads, p.seq)), np.float32(p.scale))
    return _spec(plan, launch, rows, "convert", p.dim, ("dQ_sum", "dQ"), scalars)


def sum_heads(plan: Plan, launch: KernelLaunch, name: str, rows: int) -> KernelSpec:
    """`name` (dK or dV) of every KV head from those of its query heads."""
    p, target = plan.problem, plan.tensor(name)
    sizes = (p.batch, p.kv_heads, p.group, p.seq_kv)
    return _spec(plan, launch, rows, "sum_heads", target.cols, (name, f"{name}_heads"), tuple(map(np.int32, sizes)))


def _spec(
    plan: Plan,
    launch: KernelLaunch,
    rows: int,
    entry: str,
    dim: int,
    tensors: tuple[str, ...],
    scalars: tuple[np.generic, ...],
) -> KernelSpec:
    p = plan.problem
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": dim,
        "DIM_V": p.dim_v,
        "ROWS": rows,
        "THREADS": launch.resources.threads,
        "TOKEN_MAJOR": int(p.layout == "bshd"),
    }
    return KernelSpec(
        name=launch.name,
        source=SOURCE,
        entry=entry,
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=0,
        tensors=tensors,
        scalars=scalars,
    )
