"""The tile programs of decoding: a block of query rows against one part of a KV cache, by one or more agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from traces.decoding import MMA_ROWS, DecodeTiles
from traces.kv_tiles import KvSource
from traces.launch import KernelLaunch, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Store, Vector, Wait, find_place
from traces.problem import AttentionProblem
from traces.softmax import NO_MASK, ONLINE_INSTRUCTIONS, Array, mask_scores, online_step
from traces.tensor import Matrix

__all__ = ["DecodePrograms", "decode_launch"]

Finish = Callable[[Array, Array, Array], tuple[Array, ...]]
"""(row maximum, row sum, output not yet divided by it) of a part → the arrays to store."""


PLACE_CHAIN, PAGE_CHAIN, STEP_CHAIN, MERGE_CHAIN = 350, 45, 40, 440
"""Instructions one after another before the first copy (1600 cycles between clock stamps in decode.cu on an H200),
before the copies of a step from pages (200), in the row work of a step (of 970 to 990 cycles where nothing waits for
memory), and after the last product: warps merge what they have of the same rows (2280 cycles, less the work on O).
`python -m kernels_cupy decode --stamps FILE`."""


QUARTERS = 4
"""Of an SM, each with tensor cores and a scheduler of its own."""
QUERY_ELEMENTS = 16 * 128
"""Largest tile of queries that every warp keeps in registers; of a larger one each reads its operands in every step."""


def decode_launch(
    name: str,
    problem: AttentionProblem,
    schedule: DecodeTiles,
    ctas: int,
    work: Callable[[int], Sequence[WorkItem]],
    finish: Finish,
    results: int = 2,
) -> KernelLaunch:
    """The kernel over parts, which store the `results` arrays of `finish`.

    In kernels_cupy every warp has all rows (with MLA, up to 32) and some of the keys. Elsewhere warps have rows, and
    those that the tile has none for take other keys instead, so that they read no operand twice.
    """

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        part = DecodePrograms(matrices, parameters, problem, schedule, results)
        return (part.first(finish), *(part.other(number) for number in range(1, part.count)))

    if schedule.keys_by_warps:
        warps = schedule.warps // agents_of(problem, schedule)
        columns = warps // max(1, min(warps, schedule.tile_q // (2 * MMA_ROWS))) if problem.mla else warps
    else:
        warps, columns = min(schedule.warps, schedule.tile_q // MMA_ROWS), 1
    return KernelLaunch(
        name,
        ctas,
        schedule.resources(problem),
        work,
        agents,
        schedule.instruction,
        warps,
        warp_columns=columns,
        in_step=problem.mla or not schedule.keys_by_warps,
    )


def agents_of(problem: AttentionProblem, schedule: DecodeTiles) -> int:
    """Agents of a CTA: of warps that never wait for each other, one for those on different quarters of the SM.

    One only where warps share what dequantises all tiles: scales per channel or head, numbers of outlier channels.
    """
    scaled = problem.kv_scale != "token" and "quantised_kv" in problem.features
    shares = problem.outlier_channels > 0 or scaled
    whole = schedule.warps % QUARTERS == 0 and schedule.tile_kv % (schedule.warps // QUARTERS) == 0
    return schedule.warps // QUARTERS if schedule.keys_by_warps and whole and not (problem.mla or shares) else 1


class DecodePrograms:
    """A block of query rows against one part of the cache: FlashAttention's loop, with K and V `stages` steps ahead.

    Agents take keys of every step in turns, and merge what they have at the end. A part without tokens loads nothing
    and stores an empty result.

    Args:
        matrices: Q, `results` outputs and the cache's.
        parameters: as of `DecodeBlocks.items`.
    """

    def __init__(
        self,
        matrices: tuple[Matrix, ...],
        parameters: tuple[int, ...],
        problem: AttentionProblem,
        schedule: DecodeTiles,
        results: int,
    ) -> None:
        self._start, self._tokens, self._diagonal = parameters
        self._q, *self._outputs = matrices[: 1 + results]
        self._matrices, self._of = matrices, {m.name: m for m in matrices}
        self._problem, self._schedule, self._results = problem, schedule, results
        self.count = agents_of(problem, schedule)
        self._query: Any = None
        self._parts: dict[int, tuple[Any, Any, Any]] = {}
        self._paged = "block_table" in self._of
        self._pages = Barrier("block table")
        self._begun = Barrier("Q full")
        self._ended = Barrier("parts", max(1, self.count - 1))

    def first(self, finish: Finish) -> Program:
        """Loads Q besides its keys, merges and stores."""
        yield find_place(PLACE_CHAIN)
        if self._keys:
            if self._paged:
                yield Wait((yield Load(self._of["block_table"].tile(0, 1))))
                if self.count > 1:
                    yield Arrive(self._pages)
            self._query = yield Load(self._q.tile(0, self._q.rows))
            if self.count > 1:
                yield Arrive(self._begun, after=self._query)
        yield from self._attend(0)
        if self.count > 1:
            yield Await(self._ended)
        values = [value for number in range(self.count) for value in self._parts[number]]

        def merge(*values: Array) -> tuple[Array, ...]:
            return finish(*merge_parts(list(zip(values[::3], values[1::3], values[2::3], strict=True))))

        stored = yield Vector(
            merge,
            tuple(values),
            instructions=2 * self._schedule.tile_q * self._problem.dim_v,
            results=self._results,
            chain=MERGE_CHAIN,
        )
        for matrix, value in zip(self._outputs, stored, strict=True):
            yield Store(matrix.tile(0, matrix.rows), value)

    def other(self, number: int) -> Program:
        """Leaves what it has to the first."""
        yield find_place(PLACE_CHAIN)
        if self._keys and self._paged:
            yield Await(self._pages)
        yield from self._attend(number)
        yield Arrive(self._ended)

    @property
    def _keys(self) -> range:
        """Where the part's keys are among the rows of its views."""
        return range(self._start, self._of["KV" if self._problem.mla else "K"].rows)

    def _attend(self, number: int) -> Program:
        """The steps of one agent; leaves (row maximum, row sum, output not yet divided by it)."""
        p, s, q = self._problem, self._schedule, self._q
        latent = p.mla
        k, v = (
            KvSource(x, self._matrices, p, s.dequantise == "registers")
            for x in (("KV", "KV") if latent else ("K", "V"))
        )
        rows, columns, step = s.tile_q, p.dim_v, s.tile_kv // self.count
        used = 8 if s.keys_by_warps and not latent and rows == MMA_ROWS and q.rows <= 8 else rows
        scale = np.float32(p.scale)
        starts = self._keys[number * step :: s.tile_kv]
        k_tiles: dict[int, Any] = {}
        v_tiles: dict[int, Any] = {}

        def load(tiles: dict[int, Any], source: KvSource, position: int) -> Program:
            if position < len(starts):
                if self._paged and tiles is k_tiles:
                    yield find_place(PAGE_CHAIN)
                tiles[position] = yield from source.load(starts[position], step)

        maximum: Any = np.full((q.rows, 1), -np.inf, np.float32)
        total: Any = np.zeros((q.rows, 1), np.float32)
        output: Any = np.zeros((q.rows, columns), np.float32)
        for position in range(s.stages):
            yield from load(k_tiles, k, position)
            if not latent:
                yield from load(v_tiles, v, position)
        if starts and self.count == 1:
            yield Wait(self._query)
        elif starts:
            yield Await(self._begun)
        for position, first in enumerate(starts):
            k_tile = yield from k.ready(k_tiles.pop(position))
            kept = s.keys_by_warps and not latent and rows * q.cols <= QUERY_ELEMENTS
            scores = yield Matmul(self._query, k_tile, (rows, step, q.cols), transpose_b=True, a_in_registers=kept)
            if not latent:
                yield from load(k_tiles, k, position + s.stages)
            probabilities, maximum, total, output = yield Vector(
                lambda raw, m, t, acc, first=first: online_step(
                    mask_packed(raw * scale, self._tokens, first - self._start, self._diagonal, p.window), m, t, acc
                ),
                (scores, maximum, total, output),
                exps=used * step,
                instructions=ONLINE_INSTRUCTIONS * used * step + used * columns // self.count,
                shared_bytes=2 * rows * step * p.storage.element_bytes if latent else 0,  # P
                results=4,
                chain=STEP_CHAIN if s.keys_by_warps else 0,
            )
            if latent:
                v_tile = yield Vector(lambda tile: tile[:, :columns], (k_tile,))
            else:
                v_tile = yield from v.ready(v_tiles.pop(position))
            output = yield Matmul(
                probabilities, v_tile, (used, columns, step), output, a_in_registers=not (latent and s.keys_by_warps)
            )
            yield from load(k_tiles if latent else v_tiles, v, position + s.stages)
        self._parts[number] = maximum, total, output


def merge_parts(parts: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """(row maximum, row sum, output not yet divided by it) over some keys, from the same over parts of them."""
    if len(parts) == 1:
        return parts[0]
    maximum = np.max([m for m, _, _ in parts], axis=0)
    weights = [np.where(np.isfinite(m), np.exp(m - np.where(np.isfinite(maximum), maximum, 0)), 0) for m, _, _ in parts]
    total = np.sum([w * t for w, (_, t, _) in zip(weights, parts, strict=True)], axis=0)
    output = np.sum([w * o for w, (_, _, o) in zip(weights, parts, strict=True)], axis=0)
    return maximum, total.astype(np.float32), output.astype(np.float32)


def mask_packed(scores: Array, tokens: int, first_key: int, diagonal: int, window: int) -> Array:
    """`mask_scores` of rows that are several heads' `tokens` rows, one head after another."""
    if diagonal == NO_MASK:
        return scores
    heads = [scores[row : row + tokens] for row in range(0, len(scores), tokens)]
    return np.concatenate([mask_scores(head, first_key, diagonal, window) for head in heads])
