"""Which algorithm and schedule of `traces` each measured PyTorch call is.

Tiles are the measured kernels' own. cuBLAS names them: `nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT` computes output
tiles of 256x128 with k steps of 64 in 4 buffers, clusters of 1x2, consecutive clusters along h. It sees matrices
column-major, so what it calls M are the *columns* of the row-major output and N its rows: 256 columns and 128 rows of
S = QK^T here, with two CTAs on the same 256 keys. The measured bytes say so (docs/validation.md): the SM ports receive
(rows + columns) per tile, the L2 is asked for columns / 2 + rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from experiments.measurements import MeasuredCall, MeasuredKernel
from traces.algorithms import algorithm
from traces.algorithms.flash3 import Flash3Schedule
from traces.algorithms.naive import NaiveSchedule
from traces.flash3_block import ROWS_PER_WARPGROUP
from traces.launch import Plan
from traces.schedule import Schedule

__all__ = ["CublasTile", "MappedCall", "cudnn_schedule", "map_call", "naive_schedule"]

WARPGROUP = 128
"""Threads of a warpgroup."""

CUBLAS_SWIZZLE = 16
"""Clusters across a strip of cuBLAS' raster, from how often QK^T read its inputs from HBM (docs/validation.md)."""


@dataclass(frozen=True, slots=True)
class CublasTile:
    """The tiling that a cuBLAS Hopper kernel's name tells, in the terms of the row-major output.

    Attributes:
        rows, cols: output tile.
        k: k step.
        stages: shared-memory buffers.
        cluster_rows, cluster_cols: thread-block cluster along rows and columns of the output.
        raster: `along_m` (consecutive clusters go down the rows) or `along_n` (along the columns).
        cooperative: two consumer warpgroups share a tile.
    """

    rows: int
    cols: int
    k: int
    stages: int
    cluster_rows: int
    cluster_cols: int
    raster: str
    cooperative: bool

    @classmethod
    def parse(cls, kernel: str) -> CublasTile:
        """Read a kernel name.

        Raises:
            ValueError: not a cuBLAS `nvjet` kernel.
        """
        match = re.fullmatch(r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x(\d+)_(\d+)x(\d+)_([hv])_bz(_coop[AB])?_[NT]{3}", kernel)
        if match is None:
            raise ValueError(f"kernel {kernel!r} is not named like nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT")
        cols, rows, k, stages, cluster_cols, cluster_rows = (int(text) for text in match.groups()[:6])
        raster = "along_m" if match[7] == "h" else "along_n"
        return cls(rows, cols, k, stages, cluster_rows, cluster_cols, raster, match[8] is not None)


@dataclass(frozen=True, slots=True)
class MappedCall:
    """A measured call and what to simulate for it.

    Attributes:
        call: the measurement.
        algorithm: registry name.
        schedule: that algorithm's schedule.
    """

    call: MeasuredCall
    algorithm: str
    schedule: Schedule

    def plan(self) -> Plan:
        """The tensors and launches to simulate."""
        return algorithm(self.algorithm).plan(self.call.problem, self.schedule)


def map_call(call: MeasuredCall) -> MappedCall | None:
    """What to simulate for `call`; None for a path without a counterpart here.

    `flash` is left out because its kernels spill registers to memory, which no schedule describes.
    """
    if call.algorithm == "naive":
        return MappedCall(call, "naive", naive_schedule(call.kernels))
    if call.algorithm in ("cudnn", "cudnn_causal"):
        return MappedCall(call, "flash3", cudnn_schedule(call.kernels[0]))
    return None


def naive_schedule(kernels: tuple[MeasuredKernel, ...]) -> NaiveSchedule:
    """The tiles of the three measured kernels: QK^T, softmax, PV."""
    qk_kernel, softmax, pv_kernel = kernels
    qk, pv = CublasTile.parse(qk_kernel.name), CublasTile.parse(pv_kernel.name)
    return NaiveSchedule(
        tile_q=qk.rows,
        tile_kv=qk.cols,
        tile_k=qk.k,
        stages=qk.stages,
        cluster_m=qk.cluster_rows,
        cluster_n=qk.cluster_cols,
        raster=qk.raster,
        swizzle=CUBLAS_SWIZZLE,
        pv_tile_q=pv.rows,
        pv_tile_d=pv.cols,
        pv_tile_k=pv.k,
        pv_stages=pv.stages,
        pv_cluster_m=pv.cluster_rows,
        pv_cluster_n=pv.cluster_cols,
        pv_raster=pv.raster,
        persistent_ctas=max(qk_kernel.ctas, pv_kernel.ctas),
        gemm_threads=qk_kernel.threads,
        softmax_threads=softmax.threads,
        softmax_rows=softmax.block[1],
        softmax_instructions=softmax_instructions(softmax),
    )


def softmax_instructions(kernel: MeasuredKernel) -> int:
    """fp32 issue slots per score of PyTorch's softmax kernels, calibrated on measured cycles (docs/validation.md).

    One warp per row up to 1024 columns; else a block per row, keeping it in shared memory where it fits the kernel's
    rules (N = 16384 here), else reading it three times through L1.
    """
    if kernel.block[1] > 1:
        return 40
    return 66 if kernel.dynamic_shared_bytes > 1024 else 110


def cudnn_schedule(kernel: MeasuredKernel) -> Flash3Schedule:
    """cuDNN's forward: `…_64x128x128_4x1x1_…` is 64 query rows per consumer warpgroup, 128 keys, head dimension 128.

    One warpgroup of the CTA produces, the others consume. The orders are not in the name and are assumed: blocks of one
    head follow each other, since every K and V came from HBM once; KV blocks go forward.
    """
    match = re.search(r"_(\d+)x(\d+)x(\d+)_\d+x1x1_cga1x1x1_", kernel.name)
    if match is None or int(match[1]) != ROWS_PER_WARPGROUP:
        raise ValueError(f"kernel {kernel.name!r} does not tell its tiles like …_64x128x128_4x1x1_cga1x1x1_…")
    consumers = kernel.threads // WARPGROUP - 1
    return Flash3Schedule(
        tile_q=consumers * ROWS_PER_WARPGROUP,
        tile_kv=int(match[2]),
        kv_order="forward",
        cta_order="m_fastest",
        overlap=False,
        persistent_ctas=kernel.ctas,
    )
