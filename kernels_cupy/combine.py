"""The kernels that merge partial results: of splits (`traces.combine`), and of v2's partitions (`paged_decode`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.kernel import KernelSpec, c_type, starts
from traces.combine import columns_at_once, combine_rows_per_cta
from traces.launch import KernelLaunch, Plan

SOURCE = Path(__file__).with_suffix(".cu")
REDUCE_SOURCE = Path(__file__).with_name("reduce_partitions.cu")


def loads_under_way(dim_v: int) -> int:
    """Partial tiles of O that the unrolled loop has under way, by its machine code.

    A thread with four columns waits for one of two loads before each next one; one with more columns has about three.
    """
    return 2 if dim_v <= columns_at_once(dim_v) else 3


def combine(plan: Plan, launch: KernelLaunch) -> KernelSpec:
    """O and LSE from O_partial and LSE_partial."""
    o, splits = plan.tensor("O"), plan.tensor("LSE_partial").rows
    defines: dict[str, int | str] = {"ROWS": combine_rows_per_cta(o.cols), "LSE": 1}
    tensors = ("O_partial", "LSE_partial", "O", "LSE")
    return _merger(plan, launch, SOURCE, "combine", defines, tensors, (o.batch, o.heads, o.rows, splits))


def reduce_partitions(plan: Plan, launch: KernelLaunch) -> KernelSpec:
    """O and LSE from O_partial, max_partial and sum_partial."""
    p, o, parts = plan.problem, plan.tensor("O"), plan.tensor("max_partial").rows
    tensors = ("O_partial", "max_partial", "sum_partial", "O", "LSE")
    tables = (starts(p.lengths),) if p.lengths else ()
    defines: dict[str, int | str] = {"VARLEN": int(bool(p.lengths))}
    sizes = (p.batch, o.heads, o.rows, parts)
    return _merger(plan, launch, REDUCE_SOURCE, "reduce_partitions", defines, tensors, sizes, tables)


def _merger(
    plan: Plan,
    launch: KernelLaunch,
    source: Path,
    entry: str,
    defines: dict[str, int | str],
    tensors: tuple[str, ...],
    sizes: tuple[int, ...],
    tables: tuple[tuple[int, ...], ...] = (),
) -> KernelSpec:
    o, threads = plan.tensor("O"), launch.resources.threads
    common: dict[str, int | str] = {
        "T": c_type(o.dtype),
        "DIM_V": o.cols,
        "THREADS": threads,
        "TOKEN_MAJOR": int(o.layout == "bshd"),
    }
    return KernelSpec(
        name=launch.name,
        source=source,
        entry=entry,
        defines=common | defines,
        grid=(launch.ctas, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=tensors,
        tables=tables,
        scalars=tuple(np.int32(n) for n in sizes),
    )
