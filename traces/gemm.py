"""One output tile of a matrix product as a tile program: a producer that copies, a consumer that multiplies.

This is the structure of a warp-specialised GEMM (CUTLASS 3 `KernelTmaWarpSpecialized`): `stages` shared-memory
buffers, each guarded by a full and an empty barrier, so that loads of the next tile run under the epilogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Store, Vector, Wait
from traces.tensor import Matrix


def gemm_tile(
    a: Matrix,
    b: Matrix,
    c: Matrix,
    *,
    tile: tuple[int, int, int],
    stages: int,
    transpose_a: bool = False,
    transpose_b: bool = False,
    scale: float = 1.0,
    asynchronous: bool = True,
    share_a: tuple[int, int] = (1, 0),
    share_b: tuple[int, int] = (1, 0),
) -> tuple[Program, ...]:
    """Agents computing C = scale * A @ B for one tile; every matrix is already cut to the tile.

    Args:
        a: [m, K], or [K, m] with `transpose_a`; b: [K, n], or [n, K] with `transpose_b`; c: [m, n].
        tile: (m, n, k step) that the tensor cores execute.
        asynchronous: products run while the next is issued (wgmma); else each ends first (mma.sync, and a barrier).
        share_a, share_b: (CTAs that multicast this operand to each other, which share this CTA loads).
    """
    tile_m, tile_n, tile_k = tile
    full = [Barrier(f"full {s}", count=2) for s in range(stages)]
    empty = [Barrier(f"empty {s}", open_phases=1) for s in range(stages)]
    buffers: dict[int, tuple[Any, Any]] = {}
    starts = range(0, a.rows if transpose_a else a.cols, tile_k)

    def producer() -> Program:
        for step, k in enumerate(starts):
            stage = step % stages
            yield Await(empty[stage])
            a_tile = yield Load(a.tile(k, tile_k) if transpose_a else a.tile(0, a.rows, k, tile_k), *share_a)
            b_tile = yield Load(b.tile(0, b.rows, k, tile_k) if transpose_b else b.tile(k, tile_k), *share_b)
            buffers[stage] = a_tile, b_tile
            yield Arrive(full[stage], after=a_tile)
            yield Arrive(full[stage], after=b_tile)

    def consumer() -> Program:
        # One product stays in flight: a stage is free again when the product after it has been issued and it has ended.
        accumulator: Any = None
        for step, _ in enumerate(starts):
            stage = step % stages
            yield Await(full[stage])
            a_tile, b_tile = buffers[stage]
            if transpose_a:
                a_tile = yield Vector(np.transpose, (a_tile,))  # the tensor cores read A either way
            before = accumulator
            accumulator = yield Matmul(
                a_tile, b_tile, (tile_m, tile_n, tile_k), accumulator, transpose_b, asynchronous=asynchronous
            )
            if not asynchronous:
                yield Arrive(empty[stage])
            elif stages == 1:  # nothing to run ahead into
                yield Wait(accumulator)
                yield Arrive(empty[0])
            elif step > 0:
                yield Wait(before)
                yield Arrive(empty[(step - 1) % stages])
        if asynchronous and stages > 1:
            yield Wait(accumulator)
            yield Arrive(empty[(len(starts) - 1) % stages])
        # Epilogue: scale and convert each accumulator, through shared memory for coalesced stores.
        result = yield Vector(
            lambda x: x * scale,
            (accumulator,),
            instructions=2 * tile_m * tile_n,
            shared_bytes=2 * c.tile(0, c.rows).size_bytes,
        )
        yield Store(c.tile(0, c.rows), result)

    return producer(), consumer()
