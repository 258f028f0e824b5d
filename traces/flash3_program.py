"""The programs of FlashAttention-3's forward for one query block: a producer and the consumer warpgroups.

What each does is algorithm 1 and 2 of Shah et al. 2024 (arXiv:2407.08608). Who waits for whom is the CUDA release's:
K runs one block ahead of V in the producer; consumers take turns at issuing products (ping-pong); all of them finish a
query block before O goes out through the buffers of V, and V of the next block is copied only then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traces.dtypes import DTYPES
from traces.flash3_block import ROWS_PER_WARPGROUP, Barriers, BlockShape
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Store, Vector, Wait
from traces.softmax import Array, finish, mask_scores, online_scores
from traces.tensor import Matrix

HALF_RATE = 2
"""FP32 issue slots of an instruction that runs at 64 lanes per cycle and SM where FFMA and FADD run at 128: minimum and
maximum, comparison, selection and conversion (CUDA C++ Programming Guide, arithmetic throughput, 9.0)."""
SOFTMAX_SLOTS = HALF_RATE + 1 + 1 + HALF_RATE // 2
"""FP32 issue slots per score beside its exponential: max, scale-and-subtract as one FFMA, sum, and half a conversion
(two scores are packed at once)."""
MASK_SLOTS = 2 * HALF_RATE
"""FP32 issue slots per score of a masked block: compare the column with the row's limit, select."""
FP8_SLOTS = 1
"""Issue slots per score that FP8 adds: P must be permuted between the lanes of a quad into the layout of an 8-bit
operand (two selections, two shuffles and two byte permutations on each eight scores, paper section 3.3), and another
conversion."""
TRANSPOSE_SLOTS = 1
"""Issue slots per four bytes of V that the producer warpgroup transposes: LDSM.T, four PRMT on four words, STSM."""
FP8_P_SCALE = 256.0
"""P is at most 1, where FP8 has few numbers; the release shifts the exponent so that it is at most 2^8."""


def flash3_block(matrices: tuple[Matrix, ...], shape: BlockShape) -> tuple[Program, ...]:
    """The producer and the consumers of one query block; with FP8, the transposer of V stands between them.

    Args:
        matrices: Q, K, V, O, LSE, and with FP8 the scales of Q, K and V.
    """
    fp8 = len(matrices) > 5
    barriers = Barriers.of(shape.stages, shape.consumers, transposed=fp8)
    buffers: dict[Any, Any] = {}
    consumers = (_Consumer(w, shape, matrices, barriers, buffers).run() for w in range(shape.consumers))
    transposer = (_transposer(matrices[2], shape, barriers, buffers),) if fp8 else ()
    return _producer(matrices, shape, barriers, buffers), *transposer, *consumers


def _producer(matrices: tuple[Matrix, ...], shape: BlockShape, on: Barriers, buffers: dict[Any, Any]) -> Program:
    """Copies Q, and K and V through their stages; K of a block before V of the one before it if products overlap."""
    q, k, v = matrices[:3]
    blocks, ahead = shape.blocks, int(shape.overlap)

    def load(matrix: Matrix, position: int, full: list[Barrier], empty: list[Barrier]) -> Program:
        stage, start = position % shape.stages, blocks[position] * shape.tile_kv
        yield Await(empty[stage])
        tile = matrix.tile(start, min(shape.tile_kv, shape.keys - start))
        buffers[matrix.name, stage] = yield Load(tile, shape.multicast, shape.share)
        yield Arrive(full[stage], after=buffers[matrix.name, stage])

    if not blocks:
        return
    yield Await(on.q_empty)
    buffers["Q"] = yield Load(q.tile(0, shape.tile_q))
    yield Arrive(on.q_full, after=buffers["Q"])
    for position in range(len(blocks) + ahead):
        if position < len(blocks):
            yield from load(k, position, on.k_full, on.k_empty)
        if position == ahead:
            yield Await(on.o_stored)
        if position >= ahead:
            yield from load(v, position - ahead, on.v_full, on.v_empty)


def _transposer(v: Matrix, shape: BlockShape, on: Barriers, buffers: dict[Any, Any]) -> Program:
    """The producer warpgroup's other work with FP8: wgmma takes 8-bit operands only with k contiguous."""
    for position in range(len(shape.blocks)):
        stage = position % shape.stages
        yield Await(on.v_full[stage])
        tile_bytes = shape.tile_kv * v.cols
        buffers[v.name, stage] = yield Vector(
            lambda tile: tile,
            (buffers[v.name, stage],),
            instructions=TRANSPOSE_SLOTS * tile_bytes // 4,
            shared_bytes=2 * tile_bytes,
        )
        yield Arrive(on.v_ready[stage])


@dataclass(slots=True)
class _Consumer:
    """A warpgroup that owns 64 query rows: S = Q K^T, online softmax, O += P V.

    Position n is the n-th KV block that is visited. Attributes past `buffers` are what is in registers.
    """

    warpgroup: int
    shape: BlockShape
    matrices: tuple[Matrix, ...]
    on: Barriers
    buffers: dict[Any, Any]
    q_rows: Any = None
    maximum: Any = None
    total: Any = None
    output: Any = None
    probabilities: Any = None
    decay: Any = None
    scales: list[Any] = field(default_factory=list)

    @property
    def _first_row(self) -> int:
        return self.warpgroup * ROWS_PER_WARPGROUP

    @property
    def _rows(self) -> int:
        """Rows that exist."""
        return max(0, min(ROWS_PER_WARPGROUP, self.matrices[0].rows - self._first_row))

    def run(self) -> Program:
        """The whole query block."""
        shape, on, last = self.shape, self.on, len(self.shape.blocks) - 1
        self.maximum = np.full((self._rows, 1), -np.inf, np.float32)
        self.total = np.zeros((self._rows, 1), np.float32)
        self.output = np.zeros((self._rows, self.matrices[2].cols), np.float32)
        yield from self._read_scales()
        if shape.blocks:
            yield Await(on.q_full)
            first = self._first_row
            self.q_rows = yield Vector(lambda tile: tile[first : first + self._rows], (self.buffers["Q"],))
        for position in range(last + 1):
            scores = yield from self._issue(position)
            yield Wait(scores)
            yield Arrive(on.k_empty[position % shape.stages])
            if position == last:
                yield Arrive(on.q_empty)
            yield from self._softmax(position, scores)
            if shape.overlap and position:
                yield from self._finish_product(position - 1)
            if position:
                yield from self._rescale()
        if shape.blocks:
            yield from self._issue_product(last)
            yield from self._finish_product(last)
            yield Arrive(on.v_read)
            yield Await(on.v_read)
        yield from self._store()
        if shape.blocks:
            yield Arrive(on.o_stored)

    def _issue(self, position: int) -> Program:
        """Start S_n = Q K_n^T, and O += P_{n-1} V_{n-1} behind it (algorithm 2) or, complete, before it (algorithm 1).

        In ping-pong no other warpgroup's product comes between the two.
        """
        shape, turn = self.shape, self.on.turn
        ping_pong = shape.ping_pong and shape.consumers > 1 and position > 0
        if ping_pong:
            yield Await(turn[self.warpgroup])
        if position and not shape.overlap:
            yield from self._issue_product(position - 1)
            yield from self._finish_product(position - 1)
        scores = yield from self._issue_scores(position)
        if position and shape.overlap:
            yield from self._issue_product(position - 1)
        if ping_pong:
            yield Arrive(turn[(self.warpgroup + 1) % shape.consumers])
        return scores

    def _issue_scores(self, position: int) -> Program:
        stage = position % self.shape.stages
        yield Await(self.on.k_full[stage])
        size = (ROWS_PER_WARPGROUP, self.shape.tile_kv, self.matrices[0].cols)
        return (yield Matmul(self.q_rows, self.buffers["K", stage], size, transpose_b=True, asynchronous=True))

    def _issue_product(self, position: int) -> Program:
        stage = position % self.shape.stages
        yield Await(self.on.v_ready[stage])
        size = (ROWS_PER_WARPGROUP, self.matrices[2].cols, self.shape.tile_kv)
        operands = self.probabilities, self.buffers["V", stage]
        self.output = yield Matmul(*operands, size, self.output, a_in_registers=True, asynchronous=True)

    def _finish_product(self, position: int) -> Program:
        yield Wait(self.output)
        yield Arrive(self.on.v_empty[position % self.shape.stages])

    def _softmax(self, position: int, scores: Any) -> Program:
        """P, and the running maximum and sum; P leaves for shared memory where it does not fit in registers."""
        shape = self.shape
        block, first_row = shape.blocks[position], self._first_row
        count = ROWS_PER_WARPGROUP * shape.tile_kv
        slots = SOFTMAX_SLOTS + MASK_SLOTS * shape.masked(block) + FP8_SLOTS * bool(self.scales)
        to_shared = count * self.matrices[2].dtype.element_bytes if shape.p_in_shared else 0

        def softmax(s: Array, m: Array, t: Array, *scales: Array) -> tuple[Array, Array, Array, Array]:
            factor = np.float32(shape.scale) * (scales[0] * scales[1] if scales else np.float32(1))
            seen = mask_scores(s * factor, block * shape.tile_kv, shape.diagonal + first_row, shape.window)
            p, m, t, decay = online_scores(seen, m, t)
            return DTYPES["fp8"].round(p * np.float32(FP8_P_SCALE)) if scales else p, m, t, decay

        self.probabilities, self.maximum, self.total, self.decay = yield Vector(
            softmax,
            (scores, self.maximum, self.total, *self.scales),
            exps=count,
            instructions=slots * count,
            shared_bytes=2 * to_shared,  # written, and read back by the product
            results=4,
        )

    def _rescale(self) -> Program:
        size = ROWS_PER_WARPGROUP * self.matrices[2].cols
        self.output = yield Vector(lambda acc, f: acc * f, (self.output, self.decay), instructions=size)

    def _read_scales(self) -> Program:
        """With FP8: what Q, K and V are to be multiplied with."""
        for matrix in self.matrices[5:]:
            tile = yield Load(matrix.tile(0, 1), through_l1=True)
            yield Wait(tile)
            self.scales.append(tile)

    def _store(self) -> Program:
        """O and LSE of the rows that exist."""
        o, lse = self.matrices[3:5]

        def result(m: Array, t: Array, acc: Array, *scales: Array) -> tuple[Array, Array]:
            return finish(m, t, acc * (scales[2] / np.float32(FP8_P_SCALE)) if scales else acc)

        values = (self.maximum, self.total, self.output, *self.scales)
        tile, row_lse = yield Vector(result, values, instructions=2 * ROWS_PER_WARPGROUP * o.cols, results=2)
        yield Store(o.tile(self._first_row, self._rows), tile)
        yield Store(lse.tile(0, 1, self._first_row, self._rows), row_lse)
