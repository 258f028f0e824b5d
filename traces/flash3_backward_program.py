"""The programs of FlashAttention-3's backward pass for one block of keys: a producer, consumer warpgroups, a dQ writer.

What each does is in appendix B of Shah et al. 2024 (arXiv:2407.08608); who waits for whom is the CUDA release's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.gradients import DS_INSTRUCTIONS, P_INSTRUCTIONS, transposed_gradient, transposed_probabilities
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Reduce, Store, Vector, Wait
from traces.tensor import Matrix

DS_BUFFERS = 2
"""Buffers of dS: a warpgroup may be one step ahead of another."""


@dataclass(frozen=True, slots=True)
class KeyBlock:
    """What the programs of a block of keys depend on beside its matrices.

    Attributes:
        scale: softmax scale.
        tile_q, tile_kv, stages, warpgroups: as in `Flash3BackwardSchedule`.
        first_row: first query row that any of the keys is seen by, a whole number of steps.
        diagonal: query row r sees the block's key j iff j <= r + diagonal.
        grouped: whether dK and dV are sums over query heads, to be added to.
    """

    scale: float
    tile_q: int
    tile_kv: int
    stages: int
    warpgroups: int
    first_row: int
    diagonal: int
    grouped: bool


def flash3_key_block(matrices: tuple[Matrix, ...], block: KeyBlock) -> tuple[Program, ...]:
    """The producer, the consumers and the dQ writer.

    Args:
        matrices: Q, dO, LSE, D, the sum of dQ, K, V, dK, dV.
    """
    programs = _Programs(matrices, block)
    consumers = (programs.consumer(w) for w in range(block.warpgroups))
    return programs.producer(), *consumers, programs.writer()


class _Programs:
    """The agents of one CTA: their barriers, and the buffers that they hand to each other."""

    def __init__(self, matrices: tuple[Matrix, ...], block: KeyBlock) -> None:
        self.matrices, self.block = matrices, block
        self.buffers: dict[Any, Any] = {}
        self.rows = list(range(block.first_row, matrices[0].rows, block.tile_q))[::-1]
        stages, consumers = range(block.stages), block.warpgroups
        self.kv_full = Barrier("K V full", 2)
        self.q_full = [Barrier(f"Q full {s}", 2) for s in stages]
        self.do_full = [Barrier(f"dO full {s}", 2) for s in stages]
        self.q_empty = [Barrier(f"Q empty {s}", consumers, open_phases=1) for s in stages]
        self.do_empty = [Barrier(f"dO empty {s}", consumers, open_phases=1) for s in stages]
        self.ds_full = Barrier("dS full", consumers)
        self.dq_full, self.dq_empty = Barrier("dQ full", consumers), Barrier("dQ empty", open_phases=1)

    def producer(self) -> Program:
        """Copies K and V once, and Q with LSE and dO with D through their stages."""
        q, do, lse, d, _, k, v, *_ = self.matrices
        m = self.block.tile_q
        for matrix in (k, v):
            self.buffers[matrix.name] = yield Load(matrix.tile(0, self.block.tile_kv))
            yield Arrive(self.kv_full, after=self.buffers[matrix.name])
        for position, row in enumerate(self.rows):
            stage = position % self.block.stages
            queries, gradients = (q, lse, self.q_full, self.q_empty), (do, d, self.do_full, self.do_empty)
            for matrix, numbers, full, empty in (queries, gradients):
                yield Await(empty[stage])
                for x, tile in ((matrix, matrix.tile(row, m)), (numbers, numbers.tile(0, 1, row, m))):
                    self.buffers[x.name, stage] = yield Load(tile)
                    yield Arrive(full[stage], after=self.buffers[x.name, stage])

    def consumer(self, warpgroup: int) -> Program:
        """Works on transposed scores of its share of the keys, and on its share of dQ's columns."""
        q, do, lse, d, _, k, v, dk, dv = self.matrices
        block, buffers, m = self.block, self.buffers, self.block.tile_q
        own_keys, own_cols = block.tile_kv // block.warpgroups, -(-k.cols // block.warpgroups)
        first_key, first_col = warpgroup * own_keys, warpgroup * own_cols
        keys = max(0, min(own_keys, k.rows - first_key))
        cols = max(0, min(own_cols, k.cols - first_col))
        dk_block: Any = np.zeros((keys, k.cols), np.float32)
        dv_block: Any = np.zeros((keys, v.cols), np.float32)

        yield Await(self.kv_full)
        k_rows = yield Vector(lambda tile: tile[first_key : first_key + keys], (buffers[k.name],))
        v_rows = yield Vector(lambda tile: tile[first_key : first_key + keys], (buffers[v.name],))
        k_cols = yield Vector(lambda tile: tile[:, first_col : first_col + cols], (buffers[k.name],))
        for position, row in enumerate(self.rows):
            stage = position % block.stages
            yield Await(self.q_full[stage])
            q_tile, lse_row = buffers[q.name, stage], buffers[lse.name, stage]
            scores = yield Matmul(k_rows, q_tile, (own_keys, m, q.cols), transpose_b=True, asynchronous=True)
            yield Await(self.do_full[stage])
            do_tile, d_row = buffers[do.name, stage], buffers[d.name, stage]
            dp = yield Matmul(v_rows, do_tile, (own_keys, m, v.cols), transpose_b=True, asynchronous=True)
            yield Wait(scores)
            p = yield Vector(
                lambda s, lse_row, row=row: transposed_probabilities(
                    s, lse_row, block.scale, first_key, block.diagonal + row
                ),
                (scores, lse_row),
                exps=own_keys * m,
                instructions=P_INSTRUCTIONS * own_keys * m,
            )
            yield Wait(dp)
            ds = yield Vector(
                transposed_gradient,
                (p, dp, d_row),
                instructions=DS_INSTRUCTIONS * own_keys * m,
                shared_bytes=2 * own_keys * m * q.dtype.element_bytes,
            )
            dv_block = yield Matmul(p, do_tile, (own_keys, v.cols, m), dv_block, a_in_registers=True, asynchronous=True)
            # dQ needs dS of all keys: each warpgroup leaves its share in shared memory, and takes some of the columns.
            all_ds = yield from self._exchange(warpgroup, position, ds)
            dq_part = yield Matmul(all_ds, k_cols, (m, own_cols, block.tile_kv), asynchronous=True)
            yield Wait(dv_block)
            yield Arrive(self.do_empty[stage])
            dk_block = yield Matmul(ds, q_tile, (own_keys, k.cols, m), dk_block, a_in_registers=True, asynchronous=True)
            yield Wait(dq_part)
            yield Await(self.dq_empty)
            buffers["dQ", warpgroup] = yield Vector(
                lambda x: x, (dq_part,), instructions=m * own_cols, shared_bytes=2 * 4 * m * own_cols
            )
            yield Arrive(self.dq_full)
            yield Wait(dk_block)
            yield Arrive(self.q_empty[stage])
        dk_block = yield Vector(
            lambda x: x * np.float32(block.scale), (dk_block,), instructions=own_keys * (k.cols + v.cols)
        )
        for matrix, value in ((dk, dk_block), (dv, dv_block)):
            tile = matrix.tile(first_key, own_keys)
            yield Reduce(tile, value) if block.grouped else Store(tile, value)

    def _exchange(self, warpgroup: int, position: int, ds: Any) -> Program:
        """dS of all keys, [queries, keys], once every warpgroup has left its share."""
        self.buffers["dS", warpgroup, position % DS_BUFFERS] = ds
        yield Arrive(self.ds_full)
        yield Await(self.ds_full)
        parts = tuple(self.buffers["dS", w, position % DS_BUFFERS] for w in range(self.block.warpgroups))
        return (yield Vector(lambda *parts: np.concatenate(parts).T, parts))

    def writer(self) -> Program:
        """Adds each step's dQ, which the consumers left, to its sum."""
        dq_sum = self.matrices[4]
        for row in self.rows:
            yield Await(self.dq_full)
            parts = tuple(self.buffers["dQ", w] for w in range(self.block.warpgroups))
            whole = yield Vector(lambda *parts: np.concatenate(parts, axis=1), parts)
            yield Reduce(dq_sum.tile(row, self.block.tile_q), whole)
            yield Arrive(self.dq_empty)
