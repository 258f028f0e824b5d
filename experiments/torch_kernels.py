"""Which algorithm and schedule of `traces` each measured PyTorch call is.

Tiles are the measured kernels' own. cuBLAS names them: `nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT` computes output
tiles of 256x128 with k steps of 64 in 4 buffers, clusters of 1x2, consecutive clusters along h. It sees matrices
column-major, so what it calls M are the *columns* of the row-major output and N its rows: 256 columns and 128 rows of
S = QK^T here, with two CTAs on the same 256 keys. The measured bytes say so (docs/validation.md): the SM ports receive
(rows + columns) per tile, the L2 is asked for columns / 2 + rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from experiments.measurements import MeasuredCall, MeasuredKernel
from traces.algorithms import algorithm
from traces.algorithms.decode_split import DecodeSplitSchedule
from traces.algorithms.flash2_backward import Flash2BackwardSchedule
from traces.algorithms.flash3 import Flash3Schedule
from traces.algorithms.naive import NaiveSchedule
from traces.algorithms.naive_backward import NaiveBackwardSchedule
from traces.flash3_block import ROWS_PER_WARPGROUP
from traces.gemm_grid import Tiling
from traces.launch import Plan
from traces.schedule import Schedule

__all__ = [
    "CublasTile",
    "MappedCall",
    "cudnn_schedule",
    "decode_schedule",
    "flash_backward_schedule",
    "map_call",
    "naive_backward_schedule",
    "naive_schedule",
]

WARPGROUP = 128
"""Threads of a warpgroup."""

NAIVE_BACKWARD_KERNELS = 6
"""Kernels of a naive backward pass: dV, dP, dP P, dS, dK, dQ. Up to two more follow in the file, elementwise kernels
over as many elements as the *next* shape's inputs have: they prepare those, and are no part of attention."""

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

    def transposed(self) -> CublasTile:
        """The same tiling in terms of the transposed output."""
        raster = "along_n" if self.raster == "along_m" else "along_m"
        sides = (self.cols, self.rows, self.k, self.stages, self.cluster_cols, self.cluster_rows)
        return CublasTile(*sides, raster, self.cooperative)

    def tiling(self, swizzle: int = 0) -> Tiling:
        """As a schedule of several GEMMs says it."""
        clusters = (self.cluster_rows, self.cluster_cols)
        return Tiling(self.rows, self.cols, self.k, self.stages, *clusters, self.raster, swizzle)


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

    The forward pass of `flash` is left out because its kernels spill registers to memory, which no schedule describes.
    Its backward pass writes 0.1 to 7 % more than its tiles for the same reason, and is kept: the error of SM write and
    L2 figures holds that part.
    """
    if call.algorithm == "naive":
        return MappedCall(call, "naive", naive_schedule(call.kernels))
    if call.algorithm in ("cudnn", "cudnn_causal"):
        return MappedCall(call, "flash3", cudnn_schedule(call.kernels[0]))
    if call.algorithm == "naive_bwd":
        call = replace(call, kernels=call.kernels[:NAIVE_BACKWARD_KERNELS])
        return MappedCall(call, "naive_backward", naive_backward_schedule(call.kernels))
    if call.algorithm == "flash_bwd":
        return MappedCall(call, "flash2_backward", flash_backward_schedule(call))
    if call.algorithm == "decode_flash":
        return MappedCall(call, "decode_split", decode_schedule(call.kernels[0]))
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


FORWARD_OPERATIONS, BACKWARD_OPERATIONS = 23, 6
"""What PyTorch's source (SoftMax.cu) does with a score, and with its gradient: forward, three conversions, maximum, two
subtractions, two exponentials of four steps, sum, a division of eight; backward, three conversions, sum, fma, and a
conversion. Issue slots of the gradient are in that proportion to the forward pass's, and are not fitted themselves."""


def softmax_instructions(kernel: MeasuredKernel) -> int:
    """fp32 issue slots per score of PyTorch's softmax kernels, calibrated on measured cycles (docs/validation.md).

    One warp per row up to 1024 columns; else a block per row, keeping it in shared memory where it fits the kernel's
    rules (N = 16384 here), else reading it three times through L1.
    """
    if kernel.block[1] > 1:
        return 40
    return 66 if kernel.dynamic_shared_bytes > 1024 else 110


def naive_backward_schedule(kernels: tuple[MeasuredKernel, ...]) -> NaiveBackwardSchedule:
    """The tiles of the six measured kernels: dV, dP, dP P, dS, dK, dQ.

    PyTorch computes dK as the transpose of Q^T dS, so that product's rows are dK's columns.
    """
    dv, dp, _, softmax, dk, dq = kernels
    return NaiveBackwardSchedule(
        dv=CublasTile.parse(dv.name).tiling().text(),
        dp=CublasTile.parse(dp.name).tiling(CUBLAS_SWIZZLE).text(),
        dk=CublasTile.parse(dk.name).transposed().tiling().text(),
        dq=CublasTile.parse(dq.name).tiling().text(),
        fuse=False,
        multiply_elements=1024,
        persistent_ctas=max(k.ctas for k in (dv, dp, dk, dq)),
        gemm_threads=dv.threads,
        softmax_threads=softmax.threads,
        softmax_rows=softmax.block[1],
        softmax_instructions=softmax_instructions(softmax) * BACKWARD_OPERATIONS // FORWARD_OPERATIONS,
    )


def flash_backward_schedule(call: MeasuredCall) -> Flash2BackwardSchedule:
    """PyTorch's FlashAttention-2 backward: tiles of the CUDA release, which its grids confirm.

    The grid of the row kernels counts query blocks, that of the main kernel key blocks.
    """
    before, main, _ = call.kernels
    tile_q, tile_kv = (-(-call.problem.seq // before.grid[0]), -(-call.problem.seq_kv // main.grid[0]))
    row_warps = 4 if call.problem.dim <= 64 else 2
    return Flash2BackwardSchedule(tile_q, tile_kv, main.threads // 32, row_warps, row_tile=tile_q)


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


def decode_schedule(kernel: MeasuredKernel) -> DecodeSplitSchedule:
    """FlashAttention-2's forward with one query row per head: 4 warps, whose heads of a group are the rows of a tile.

    The grid is (1, splits, batch x KV heads) of 64 rows by 128 keys, or (1, batch, KV heads) of 128 by 64 without
    splits; the shared memory of both is that of Q and one tile of K and V each, for 128 columns of fp16.
    """
    splits, tiles = (kernel.grid[1], (64, 128)) if kernel.name.startswith("flash_fwd_splitkv") else (1, (128, 64))
    if kernel.dynamic_shared_bytes != (tiles[0] + 2 * tiles[1]) * 128 * 2:
        raise ValueError(
            f"kernel {kernel.name!r} has {kernel.dynamic_shared_bytes} bytes of shared memory, not {tiles}'s"
        )
    return DecodeSplitSchedule(tile_q=tiles[0], tile_kv=tiles[1], warps=kernel.threads // 32, splits=splits)
