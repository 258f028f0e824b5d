"""Decoding from a paged KV cache (Kwon et al. 2023, "PagedAttention", arXiv:2309.06180).

Three kernels, by the schedule key `variant`, in the order in which serving systems took them up:

- `v1`: vLLM's first, one CTA per (sequence, query head), which walks the whole context.
- `v2`: vLLM's second, the context in partitions of 512 tokens; each leaves its row maxima, sums of exponentials and O
  in fp32, and a second kernel reduces them.
- `packed`: Flash-Decoding over pages: query heads of a KV head in one tile, the keys split to fill the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traces.algorithms.decode_split import SplitDecoding, SplitTiles, packed_rows
from traces.decode_programs import decode_launch
from traces.decoding import FEATURES, DecodeBlocks, keys_per_step
from traces.dtypes import DTYPES
from traces.kv_cache import PagedCache, cache_textbook
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait
from traces.paging import block_table
from traces.problem import AttentionProblem
from traces.schedule import require, require_multiple, require_one_of
from traces.softmax import Array, finish
from traces.tensor import Matrix, TensorTable, View, stacked
from traces.traffic import Traffic, blocks, read_once, written_once

name = "paged_decode"
summary = "decoding from a paged KV cache through a block table: vLLM's v1 and v2, and packed split-KV"
paper = "Kwon et al. 2023, PagedAttention, arXiv:2309.06180"
order = 220
default_shape = {"seq": 1, "seq_kv": 4096, "page_size": 16}

VARIANTS = ("v1", "v2", "packed")


@dataclass(frozen=True, slots=True)
class PagedDecodeSchedule(SplitTiles):
    """Tiles, and which kernel.

    Attributes:
        variant: `v1`, `v2` or `packed`.
        partition: tokens per CTA of `v2` (`splits` is for `packed`).
        seed: of the random order of pages in memory.
    """

    variant: str = "packed"
    partition: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        SplitTiles.__post_init__(self)
        require_one_of("variant", self.variant, VARIANTS)
        require_multiple("partition", self.partition, 8)
        require(self.seed >= 0, f"schedule key seed must be at least 0, not {self.seed}")


Schedule_ = PagedDecodeSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> PagedDecodeSchedule:
    """As many rows as a group has, by 64 keys."""
    tile_q = packed_rows(problem, 16, 64 if problem.dim > 128 else 128)
    slots = sm_count if problem.mla else 2 * sm_count
    return PagedDecodeSchedule(
        tile_q=tile_q, tile_kv=keys_per_step(problem, 256 if problem.mla else 64), cta_slots=slots
    )


class _Paged:
    """The tensors and launches of a plan."""

    def __init__(self, p: AttentionProblem, schedule: PagedDecodeSchedule) -> None:
        self.table = TensorTable()
        self.pages = block_table(p, schedule.seed)
        self.cache = PagedCache(p, self.table, self.pages)
        self.launches: tuple[KernelLaunch, ...]
        if schedule.variant == "packed":
            packed = SplitDecoding(p, self.cache, self.table, schedule)
            self.launches, self.traffic = packed.launches(name), packed.traffic()
        else:
            self._per_head(p, schedule)

    def _per_head(self, p: AttentionProblem, schedule: PagedDecodeSchedule) -> None:
        """v1, and v2 with its partitions; the grid is (heads, sequences, partitions), heads fastest."""
        rows = DecodeBlocks(p, self.cache, self.table, tile_q=schedule.tile_q, packed=False)
        keys = schedule.partition if schedule.variant == "v2" else max(1, rows.most_keys)
        parts = max(1, blocks(rows.most_keys, keys))
        results = Partitions(self.table, p, rows, parts) if parts > 1 else None

        def work(cta: int) -> Sequence[WorkItem]:
            part, number = divmod(cta, rows.count)
            return rows.items(number, part, lambda _: keys, results.block if results else lambda _, o, lse: (o, lse))

        end, count = (unmerged, 3) if results else (finish, 2)
        first = decode_launch(name, p, schedule, rows.count * parts, work, end, count)
        self.launches = (first, results.reduce(name)) if results else (first,)
        self.traffic = rows.traffic(parts, lambda _: keys) | (results.traffic if results else {})


class Partitions:
    """What v2's partitions leave: O divided by their own sums, row maxima, and sums of exponentials, all in fp32.

    Memory order is (batch, head, partition, row).
    """

    def __init__(self, table: TensorTable, problem: AttentionProblem, blocks: DecodeBlocks, parts: int) -> None:
        self._problem, self._blocks, self._parts = problem, blocks, parts
        o, fp32 = blocks.o, DTYPES["fp32"]
        self._o = table.add("O_partial", (o.batch, o.heads, parts * o.rows, o.cols), fp32)
        self._maximum, self._sum = (
            table.add(name, (o.batch, o.heads, parts, o.rows), fp32) for name in ("max_partial", "sum_partial")
        )

    def block(self, part: int, o: View, lse: View) -> tuple[View, ...]:
        """Views of O, maximum and sum of one part, for the rows that `o` covers."""
        row = part * self._blocks.o.rows + o.row
        ends = (t.view(o.batch, o.head).window(part, 1, o.row, o.rows) for t in (self._maximum, self._sum))
        return self._o.view(o.batch, o.head).window(row, o.rows), *ends

    @property
    def traffic(self) -> Traffic:
        """Written by the partitions, read by the reduction."""
        return {t.name: (t.size_bytes, t.size_bytes) for t in (self._o, self._maximum, self._sum)}

    def reduce(self, name: str) -> KernelLaunch:
        """One CTA of 128 threads per (sequence, head) merges its partitions."""
        p, parts = self._problem, self._parts

        def work(cta: int) -> Sequence[WorkItem]:
            b, h = divmod(cta, p.heads)
            if not p.rows(b):
                return []
            o, lse = self._blocks.results(b, h, 0, p.rows(b))
            partial = zip(*(self.block(part, o, lse) for part in range(parts)), strict=True)
            return [WorkItem((*(stacked(views) for views in partial), o, lse), ())]

        def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
            return (reduce_partitions(*matrices),)

        resources = CtaResources(128, 64, 8 * parts * p.seq)
        return KernelLaunch(f"{name}_reduce", p.batch * p.heads, resources, work, agents)


def unmerged(maximum: Array, total: Array, output: Array) -> tuple[Array, Array, Array]:
    """What a partition stores: O divided by the sum, and both numbers that its weight is made of."""
    return (output / np.where(total > 0, total, 1)).astype(np.float32), maximum, total


def reduce_partitions(partial_o: Matrix, partial_max: Matrix, partial_sum: Matrix, o: Matrix, lse: Matrix) -> Program:
    """O = sum_i w_i O_i / sum_i w_i with w_i = sum_i exp(max_i - max), over the partitions i of all rows of a head."""
    parts, elements = partial_max.rows, partial_o.rows * o.cols
    tiles = []
    for matrix in (partial_max, partial_sum, partial_o):
        tiles.append((yield Load(matrix.tile(0, matrix.rows))))
    for tile in tiles:
        yield Wait(tile)

    def merge(maxima: Array, sums: Array, outputs: Array) -> tuple[Array, Array]:
        top = maxima.max(axis=0)
        weights = sums * np.exp(maxima - np.where(np.isfinite(top), top, 0), dtype=np.float32)
        merged = (weights[:, :, None] * outputs.reshape(parts, o.rows, o.cols)).sum(axis=0, dtype=np.float32)
        return finish(top[:, None], weights.sum(axis=0, dtype=np.float32)[:, None], merged)

    result, row_lse = yield Vector(
        merge, tuple(tiles), exps=parts * o.rows, instructions=2 * elements + 4 * parts * o.rows, results=2
    )
    yield Store(o.tile(0, o.rows), result)
    yield Store(lse.tile(0, 1), row_lse)


def plan(problem: AttentionProblem, schedule: PagedDecodeSchedule) -> Plan:
    """Tensors and launches. A problem that says nothing of pages has vLLM's 16 tokens in each."""
    problem.require((*FEATURES, "page_size"))
    p = problem if problem.page_size else replace(problem, page_size=default_shape["page_size"])
    paged = _Paged(p, schedule)
    return Plan(name, p, schedule, paged.table.tensors, paged.launches, ("Q", *paged.cache.inputs), ("O", "LSE"))


def textbook(plan: Plan) -> Traffic:
    """The tokens that a sequence's rows see, once per KV head, shared or not; Q read, O written."""
    return read_once(plan, "Q") | cache_textbook(plan) | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """As `decode` (v1, v2) or `decode_split` (packed), and the entries of the block table for each CTA's pages."""
    return _Paged(plan.problem, plan.schedule).traffic | written_once(plan, "O", "LSE")
