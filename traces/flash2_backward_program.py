"""The programs of FlashAttention-2's backward pass for one block of keys (algorithm 2 of the paper).

Query blocks are visited from the last one down, as in the CUDA release. `by_warps` is the release's program, on
mma.sync; `asynchronous` that of kernels_cupy on wgmma, whose products run under the row work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.gradients import (
    DS_INSTRUCTIONS,
    P_INSTRUCTIONS,
    PLACE_CHAIN,
    probabilities,
    score_gradient,
    transposed_gradient,
    transposed_probabilities,
)
from traces.ops import Load, Matmul, Program, Reduce, Store, Vector, Wait, find_place
from traces.tensor import Matrix

PACKED_INSTRUCTIONS = 2.5
"""fp32 instructions per element of P and of dS in kernels_cupy (key_block.cuh): two, and half a conversion."""


def by_warps(
    matrices: tuple[Matrix, ...], first_row: int, diagonal: int, scale: float, tile_q: int, tile_kv: int
) -> Program:
    """One block of keys on mma.sync.

    The next Q is copied while this one is worked on, the next dO once dV has taken this one. P and dS go through shared
    memory to become operands (written and read once as row work here, so that one product finds them in registers).

    Args:
        matrices: Q, dO, LSE, D, the sum of dQ, K, V, dK, dV.
        first_row: first query row that any of the keys is seen by, a whole number of steps.
        diagonal: query row r sees the block's key j iff j <= r + diagonal.
    """
    q, do, lse, d, dq_sum, k, v, dk, dv = matrices
    m, n = tile_q, tile_kv
    exchange = 2 * m * n * q.dtype.element_bytes
    rows = list(range(first_row, q.rows, m))[::-1]
    k_tile = yield Load(k.tile(0, n))
    v_tile = yield Load(v.tile(0, n))
    q_tile = yield Load(q.tile(rows[0], m))
    do_tile = yield Load(do.tile(rows[0], m))
    dk_block: Any = np.zeros((k.rows, k.cols), np.float32)
    dv_block: Any = np.zeros((v.rows, v.cols), np.float32)
    yield Wait(k_tile)
    yield Wait(v_tile)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        lse_row = yield Load(lse.tile(0, 1, row, m))
        d_row = yield Load(d.tile(0, 1, row, m))
        yield Wait(q_tile)
        scores = yield Matmul(q_tile, k_tile, (m, n, q.cols), transpose_b=True)
        yield Wait(lse_row)
        p = yield Vector(
            lambda s, lse_row, row=row: probabilities(s * np.float32(scale), lse_row, 0, diagonal + row),
            (scores, lse_row),
            exps=m * n,
            instructions=P_INSTRUCTIONS * m * n,
            shared_bytes=exchange,
            elementwise=True,
        )
        yield Wait(do_tile)
        dp = yield Matmul(do_tile, v_tile, (m, n, v.cols), transpose_b=True)
        yield Wait(d_row)
        ds = yield Vector(
            score_gradient,
            (p, dp, d_row),
            instructions=DS_INSTRUCTIONS * m * n,
            shared_bytes=exchange,
            elementwise=True,
        )
        q_now = q_tile
        if following is not None:
            q_tile = yield Load(q.tile(following, m))
        p_columns = yield Vector(np.transpose, (p,))
        dv_block = yield Matmul(p_columns, do_tile, (n, v.cols, m), dv_block, a_in_registers=True)
        if following is not None:
            do_tile = yield Load(do.tile(following, m))
        dq_part = yield Matmul(ds, k_tile, (m, k.cols, n))
        yield Reduce(dq_sum.tile(row, m), dq_part)
        ds_columns = yield Vector(np.transpose, (ds,))
        dk_block = yield Matmul(ds_columns, q_now, (n, k.cols, m), dk_block, a_in_registers=True)
    yield from _store(dk, dv, dk_block, dv_block, scale, n)


def asynchronous(
    matrices: tuple[Matrix, ...],
    first_row: int,
    diagonal: int,
    scale: float,
    tile_q: int,
    tile_kv: int,
    exchanges_p: bool,
) -> Program:
    """One block of keys on wgmma, with transposed scores: rows of keys, columns of queries.

    A step's Q, dO, LSE and D are copied together, one step ahead. The gradient of P is multiplied under the
    exponentials, and dV under the gradient of S. With `exchanges_p` P goes through shared memory like dS (where warps
    share keys), dV's product comes last, and dQ is added under it and dK's.

    Args:
        matrices, first_row, diagonal: as for `by_warps`.
    """
    q, do, lse, d, dq_sum, k, v, dk, dv = matrices
    m, n = tile_q, tile_kv
    exchange = 2 * m * n * q.dtype.element_bytes
    rows = list(range(first_row, q.rows, m))[::-1]

    def copy(row: int) -> Program:
        loaded = []
        for tile in (q.tile(row, m), do.tile(row, m), lse.tile(0, 1, row, m), d.tile(0, 1, row, m)):
            loaded.append((yield Load(tile)))
        return loaded

    yield find_place(PLACE_CHAIN)
    k_tile = yield Load(k.tile(0, n))
    v_tile = yield Load(v.tile(0, n))
    copied = yield from copy(rows[0])
    dk_block: Any = np.zeros((k.rows, k.cols), np.float32)
    dv_block: Any = np.zeros((v.rows, v.cols), np.float32)
    yield Wait(k_tile)
    yield Wait(v_tile)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        q_tile, do_tile, lse_row, d_row = copied
        for value in copied:
            yield Wait(value)
        if following is not None:
            copied = yield from copy(following)
        scores = yield Matmul(k_tile, q_tile, (n, m, q.cols), transpose_b=True, asynchronous=True)
        dp = yield Matmul(v_tile, do_tile, (n, m, v.cols), transpose_b=True, asynchronous=True)
        yield Wait(scores)
        p = yield Vector(
            lambda s, lse_row, row=row: transposed_probabilities(s, lse_row, scale, 0, diagonal + row),
            (scores, lse_row),
            exps=m * n,
            instructions=int(PACKED_INSTRUCTIONS * m * n),
            shared_bytes=exchange if exchanges_p else 0,
            elementwise=True,
        )
        yield Wait(dp)
        if not exchanges_p:
            dv_block = yield Matmul(p, do_tile, (n, v.cols, m), dv_block, a_in_registers=True, asynchronous=True)
        ds = yield Vector(
            transposed_gradient,
            (p, dp, d_row),
            instructions=int(PACKED_INSTRUCTIONS * m * n),
            shared_bytes=exchange,
            elementwise=True,
        )
        ds_rows = yield Vector(np.transpose, (ds,))
        if exchanges_p:
            dq_part = yield Matmul(ds_rows, k_tile, (m, k.cols, n), asynchronous=True)
            dv_block = yield Matmul(p, do_tile, (n, v.cols, m), dv_block, asynchronous=True)
            dk_block = yield Matmul(ds, q_tile, (n, k.cols, m), dk_block, asynchronous=True)
        else:
            dk_block = yield Matmul(ds, q_tile, (n, k.cols, m), dk_block, a_in_registers=True, asynchronous=True)
            dq_part = yield Matmul(ds_rows, k_tile, (m, k.cols, n), asynchronous=True)
        yield Wait(dq_part)
        yield Reduce(dq_sum.tile(row, m), dq_part, by_fragments=True)
        yield Wait(dv_block)
        yield Wait(dk_block)
    yield from _store(dk, dv, dk_block, dv_block, scale, n)


def _store(dk: Matrix, dv: Matrix, dk_block: Any, dv_block: Any, scale: float, tile_kv: int) -> Program:
    """Scale dK, and store both."""
    instructions = tile_kv * (dk.cols + dv.cols)
    dk_block = yield Vector(lambda x: x * np.float32(scale), (dk_block,), instructions=instructions, elementwise=True)
    yield Store(dk.tile(0, tile_kv), dk_block)
    yield Store(dv.tile(0, tile_kv), dv_block)
