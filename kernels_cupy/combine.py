"""The kernel that merges split-KV partial results (`traces.combine`), for every algorithm that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.kernel import KernelSpec, c_type
from traces.combine import combine_rows_per_cta
from traces.launch import KernelLaunch, Plan

SOURCE = Path(__file__).with_suffix(".cu")


def combine(plan: Plan, launch: KernelLaunch, splits: int) -> KernelSpec:
    """O and LSE from O_partial and LSE_partial of `splits` splits."""
    o = plan.tensor("O")
    defines: dict[str, int | str] = {
        "T": c_type(o.dtype),
        "DIM_V": o.cols,
        "ROWS": combine_rows_per_cta(o.cols),
        "THREADS": launch.resources.threads,
        "TOKEN_MAJOR": int(o.layout == "bshd"),
        "LSE": 1,
    }
    return KernelSpec(
        name=launch.name,
        source=SOURCE,
        entry="combine",
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=("O_partial", "LSE_partial", "O", "LSE"),
        scalars=(np.int32(o.heads), np.int32(o.rows), np.int32(splits)),
    )
