"""A batched matrix product of attention as a kernel: C = scale * A B for every (batch, head), one CTA per tile."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from kernels_cupy.arrays import strides
from kernels_cupy.kernel import KernelSpec, c_type, require_supported
from traces.gemm_grid import warp_grid
from traces.tensor import Tensor

SOURCE = Path(__file__).with_suffix(".cu")
MOST_SUMS = 128
"""fp32 accumulators of a thread that leave room for operands in its 255 registers."""


def gemm(
    name: str,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    tile: tuple[int, int, int],
    stages: int,
    threads: int,
    a_along_m: bool = False,
    b_along_n: bool = False,
    raster: str = "along_n",
    strip: int = 0,
    scale: float = 1.0,
) -> KernelSpec:
    """C = scale * A B per batch and head of C; B may have fewer heads, each shared by a group (GQA).

    Args:
        name: of the kernel and of its entry.
        a: [m, k], or [k, m] with `a_along_m`.
        b: [n, k], or [k, n] with `b_along_n`.
        c: [m, n].
        tile: (m, n, k step).
        stages, threads: shared-memory buffers and threads per CTA.
        raster, strip: order of the tiles, as `raster` and `swizzle` of `NaiveSchedule`.

    Raises:
        ValueError: what the kernel does not support.
    """
    tile_m, tile_n, tile_k = tile
    warps = threads // 32
    warps_m, warps_n = warp_grid(tile_m, tile_n, warps)
    whole = tile_m % (16 * warps_m) == 0 and tile_n % (8 * warps_n) == 0
    require_supported(whole, f"{warps} warps cannot share a {tile_m} x {tile_n} tile in multiples of 16 x 8")
    sums = tile_m * tile_n // threads
    require_supported(
        sums <= MOST_SUMS, f"a {tile_m} x {tile_n} tile needs {sums} accumulators per thread of {warps} warps; use more"
    )
    require_supported(tile_k % 16 == 0, f"a k step of {tile_k} is not a multiple of 16")
    defines: dict[str, int | str] = {
        "ENTRY": name,
        "T": c_type(c.dtype),
        "TILE_M": tile_m,
        "TILE_N": tile_n,
        "TILE_K": tile_k,
        "STAGES": stages,
        "WARPS_M": warps_m,
        "WARPS_N": warps_n,
        "CTAS_PER_SM": ctas_per_sm(sums, threads),
        "A_ALONG_M": int(a_along_m),
        "B_ALONG_N": int(b_along_n),
        "ALONG_N": int(raster == "along_n"),
    }
    defines |= {f"VECTOR_{operand}": math.gcd(8, t.cols) for operand, t in (("A", a), ("B", b), ("C", c))}
    k = a.rows if a_along_m else a.cols
    numbers = (c.heads, c.heads // b.heads, c.rows, c.cols, k, strip)
    places = tuple(np.int64(s) for t in (a, b, c) for s in strides(t))
    # The tile of C is collected in the stages' buffers before it is written.
    elements = max(stages * (tile_m + tile_n) * tile_k, tile_m * tile_n)
    return KernelSpec(
        name=name,
        source=SOURCE,
        entry=name,
        defines=defines,
        grid=(c.batch * c.heads * -(-c.rows // tile_m) * -(-c.cols // tile_n), 1, 1),
        block=(threads, 1, 1),
        shared_bytes=elements * c.dtype.element_bytes,
        tensors=(a.name, b.name, c.name),
        scalars=(*places, *(np.int32(n) for n in numbers), np.float32(scale)),
    )


def ctas_per_sm(sums: int, threads: int) -> int:
    """CTAs whose registers fit an SM of 65,536: 128 for each of many threads with few accumulators, else 256."""
    return max(1, 65536 // (threads * (128 if sums <= 64 and threads >= 256 else 256)))
