"""One output tile of a matrix product as a tile program: a producer that copies, a consumer that multiplies.

This is the structure of a warp-specialised GEMM (CUTLASS 3 `KernelTmaWarpSpecialized`): `stages` shared-memory
buffers, each guarded by a full and an empty barrier, so that loads of the next tile run under the epilogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Store, Vector, Wait, find_place
from traces.tensor import Matrix, Tile

PLACE_CHAIN = 230
"""Instructions before the first copy of a product without roles: five divisions, 64-bit addresses (1050 cycles between
clock stamps in gemm.cu on an H200)."""


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
        share_a, share_b: (CTAs that multicast this operand to each other, which share this CTA loads), if asynchronous.
    """
    if not asynchronous:
        return (_gemm_tile_by_all(a, b, c, tile, stages, transpose_a, transpose_b, scale),)
    tile_m, tile_n, tile_k = tile
    full = [Barrier(f"full {s}", count=2) for s in range(stages)]
    empty = [Barrier(f"empty {s}", open_phases=1) for s in range(stages)]
    buffers: dict[int, tuple[Any, Any]] = {}
    starts = range(0, a.rows if transpose_a else a.cols, tile_k)

    def producer() -> Program:
        for step, k in enumerate(starts):
            stage = step % stages
            yield Await(empty[stage])
            a_part, b_part = _step(a, b, k, tile_k, transpose_a, transpose_b)
            a_tile = yield Load(a_part, *share_a)
            b_tile = yield Load(b_part, *share_b)
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
                a_tile, b_tile, (tile_m, tile_n, tile_k), accumulator, transpose_b, asynchronous=True
            )
            if stages == 1:  # nothing to run ahead into
                yield Wait(accumulator)
                yield Arrive(empty[0])
            elif step > 0:
                yield Wait(before)
                yield Arrive(empty[(step - 1) % stages])
        if stages > 1:
            yield Wait(accumulator)
            yield Arrive(empty[(len(starts) - 1) % stages])
        yield from _store(accumulator, c, tile, scale)

    return producer(), consumer()


def _gemm_tile_by_all(
    a: Matrix,
    b: Matrix,
    c: Matrix,
    tile: tuple[int, int, int],
    stages: int,
    transpose_a: bool,
    transpose_b: bool,
    scale: float,
) -> Program:
    """The same without roles, as on mma.sync: all warps copy `stages` - 1 steps ahead, then multiply."""
    steps = range(0, a.rows if transpose_a else a.cols, tile[2])
    buffers: list[tuple[Any, Any]] = []
    accumulator: Any = None

    def copy() -> Program:
        if len(buffers) < len(steps):
            a_part, b_part = _step(a, b, steps[len(buffers)], tile[2], transpose_a, transpose_b)
            buffers.append(((yield Load(a_part)), (yield Load(b_part))))

    yield find_place(PLACE_CHAIN)
    for _ in range(stages - 1):
        yield from copy()
    for step in range(len(steps)):
        if stages == 1:
            yield from copy()
        a_tile, b_tile = buffers[step]
        yield Wait(a_tile)
        yield Wait(b_tile)
        if stages > 1:
            yield from copy()
        if transpose_a:
            a_tile = yield Vector(np.transpose, (a_tile,))  # the tensor cores read A either way
        accumulator = yield Matmul(a_tile, b_tile, tile, accumulator, transpose_b)
    yield from _store(accumulator, c, tile, scale)


def _step(a: Matrix, b: Matrix, k: int, tile_k: int, transpose_a: bool, transpose_b: bool) -> tuple[Tile, Tile]:
    """The tiles of A and B that a step multiplies: `tile_k` of the summed dimension from `k` on."""
    return (
        a.tile(k, tile_k) if transpose_a else a.tile(0, a.rows, k, tile_k),
        b.tile(0, b.rows, k, tile_k) if transpose_b else b.tile(k, tile_k),
    )


def _store(accumulator: Any, c: Matrix, tile: tuple[int, int, int], scale: float) -> Program:
    """Scale and convert each accumulator, and store the tile through shared memory, in whole rows."""
    whole = c.tile(0, c.rows)
    instructions = 2 * tile[0] * tile[1]
    result = yield Vector(
        lambda x: x * scale,
        (accumulator,),
        instructions=instructions,
        shared_bytes=2 * whole.size_bytes,
        elementwise=True,
    )
    yield Store(whole, result)
