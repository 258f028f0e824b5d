"""Decoding: few query rows against a long KV cache. The work items and the tile program that its kernels share.

A block of rows is the next tokens of one query head, or of the query heads that share a KV head ("GQA packing": they
fill the tile of a tensor-core instruction, and the cache is read once for all of them). Each block's keys may be split
into parts for several CTAs, as in "Flash-Decoding" (Dao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from traces.dtypes import DTYPES
from traces.kv_cache import KvCache, sequences
from traces.kv_tiles import kv_shared_bytes
from traces.launch import CtaResources, WorkItem
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.sequences import query_rows
from traces.softmax import NO_MASK
from traces.tensor import AnyView, TensorTable, View, stacked
from traces.traffic import Traffic, blocks

FEATURES = ("lengths", "window", "dim_v", "mla", "quantised_kv")
"""What decoding does beyond the plain call (`AttentionProblem.require`)."""

MMA_ROWS = 16
"""Rows of one mma.sync instruction: a warp's."""


@dataclass(frozen=True, slots=True)
class DecodeTiles(Schedule):
    """Tiles that all decoding kernels have.

    Attributes:
        tile_q: rows that the tensor cores execute: query rows, and what is missing to a whole tile.
        tile_kv: key/value rows per step.
        stages: K and V buffers in shared memory (each).
        warps: warps per CTA.
        instruction: tensor-core family.
        dequantise: where codes of a quantised cache become numbers: `shared` memory, or `registers` on their way to the
            tensor cores, as in kernels_cupy (`keys_by_warps`).
    """

    tile_q: int = 16
    tile_kv: int = 64
    stages: int = 2
    warps: int = 4
    instruction: str = "mma_sync"
    dequantise: str = "shared"

    def __post_init__(self) -> None:
        require_one_of("dequantise", self.dequantise, ("shared", "registers"))
        require_multiple("tile_q", self.tile_q, MMA_ROWS)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(1 <= self.warps <= 32, f"schedule key warps must be 1 to 32, not {self.warps}")
        require_one_of("instruction", self.instruction, ("mma_sync", "wgmma"))

    @property
    def keys_by_warps(self) -> bool:
        """Whether each warp has keys of its own, waits for no other, keeps up to 16 x 128 queries in registers, and
        multiplies up to 8 rows with V as V^T P^T, a product of 8 columns: the kernel of kernels_cupy.
        """
        return self.dequantise == "registers"

    def resources(self, p: AttentionProblem) -> CtaResources:
        """Q, and `stages` tiles of K and V, in shared memory.

        With MLA `stages` tiles of both, and P and each warp's row maxima: O is too wide for one warp's registers, so
        that warps share rows and exchange them.
        """
        shared = self.tile_q * p.dim * p.storage.element_bytes
        if p.mla:
            shared += self.stages * self.tile_kv * p.dim * p.kv_storage.element_bytes
            shared += self.tile_q * self.tile_kv * p.storage.element_bytes + self.warps * self.tile_q * 4
        else:
            shared += kv_shared_bytes(p, self.tile_kv, self.stages, self.dequantise == "registers")
        return CtaResources(self.warps * 32, min(255, 65536 // (self.warps * 32)), shared)


def keys_per_step(p: AttentionProblem, most: int) -> int:
    """Key rows of a step that fit in shared memory: `most` up to 128 columns, fewer of wider or fp32 rows."""
    columns = max(p.dim, p.dim_v) * (2 if p.kv_storage.element_bytes == 4 else 1)
    return most if columns <= 128 else max(16, most >> (-(-columns // 128) - 1).bit_length())


def block_shape(p: AttentionProblem, tile_q: int, packed: bool) -> tuple[int, int]:
    """(query heads, most tokens of each) of a block of rows."""
    heads = min(p.group, tile_q) if packed else 1
    return heads, max(1, tile_q // heads)


class Part(NamedTuple):
    """Tokens [first, last) of a sequence, which query rows [row, row + rows) of each of its heads attend to."""

    sequence: int
    row: int
    rows: int
    first: int
    last: int


class DecodeBlocks:
    """Blocks of query rows, and the parts of the cache that CTAs take for each.

    Args:
        problem: what is computed.
        cache: where K and V are.
        table: takes Q, O and LSE.
        tile_q: most rows of a block.
        packed: whether the rows of a block are those of all query heads of a KV head, or of one query head.
    """

    def __init__(
        self, problem: AttentionProblem, cache: KvCache, table: TensorTable, *, tile_q: int, packed: bool
    ) -> None:
        p = self._problem = problem
        self._cache, self._rows = cache, query_rows(problem)
        self.block_heads, self._tokens = block_shape(p, tile_q, packed)
        self.blocks_per_group = blocks(p.group, self.block_heads)
        rows = self._rows
        self._q = table.add("Q", (rows.batch, p.heads, rows.rows, p.dim), p.storage, p.layout)
        self.o = table.add("O", (rows.batch, p.heads, rows.rows, p.dim_v), p.storage, p.layout)
        self.lse = table.add("LSE", (rows.batch, p.heads, 1, rows.rows), DTYPES["fp32"])

    @property
    def count(self) -> int:
        """Blocks, those past the end of a short sequence included."""
        return self._problem.batch * self._problem.kv_heads * self.blocks_per_group * self._blocks_of_rows

    @property
    def most_keys(self) -> int:
        """Tokens that the block with the most of them attends to."""
        return max((part.last - part.first for part, _ in self._whole()), default=0)

    def items(self, number: int, split: int, part_keys: PartKeys, outputs: Outputs) -> list[WorkItem]:
        """The work of one CTA: part `split` of block `number`, or nothing.

        Views are Q, what `outputs` gives, and the cache's; parameters are the row of the first token in the cache's
        views, query rows per head, and the diagonal: row r of a head sees row j of the views' tokens up to
        r + diagonal, and with a window from r + diagonal - window + 1 on.
        """
        p = self._problem
        rest, block = divmod(number, self._blocks_of_rows)
        sequence, head_block = divmod(rest, p.kv_heads * self.blocks_per_group)
        kv_head, within = divmod(head_block, self.blocks_per_group)
        row = block * self._tokens
        if row >= p.rows(sequence):
            return []
        part = self._part(sequence, row, split, part_keys)
        first_head = kv_head * p.group + within * self.block_heads
        heads = range(first_head, min(first_head + self.block_heads, (kv_head + 1) * p.group))
        q = [self._rows.view(self._q, sequence, h).window(row, part.rows) for h in heads]
        results = (outputs(split, *self.results(sequence, h, row, part.rows)) for h in heads)
        kept, offset = self._cache.views(sequence, kv_head, part.first, part.last)
        views = (_one(q), *(_one(of_heads) for of_heads in zip(*results, strict=True)), *kept)
        return [WorkItem(views, (offset, part.rows, self._diagonal(part)))]

    def results(self, sequence: int, head: int, row: int, rows: int) -> tuple[View, View]:
        """Views of O and LSE of some rows of a head."""
        o, lse = self._rows.view(self.o, sequence, head), self._rows.columns(self.lse, sequence, head)
        return o.window(row, rows), lse.window(0, 1, row, rows)

    def traffic(self, splits: int, part_keys: PartKeys) -> Traffic:
        """SM-port bytes of Q and the cache: a part with any token reads its block's queries and those tokens."""
        p = self._problem
        read = dict.fromkeys(("Q", *self._cache.inputs), 0)
        for whole, count in self._whole():
            for split in range(splits):
                part = self._part(whole.sequence, whole.row, split, part_keys)
                if part.first == part.last:
                    continue
                read["Q"] += count * p.heads * part.rows * p.dim * p.storage.element_bytes
                for name, moved in self._cache.bytes_read(part.sequence, part.first, part.last).items():
                    read[name] += count * p.kv_heads * self.blocks_per_group * moved
        return {name: (moved, 0) for name, moved in read.items()}

    @property
    def _blocks_of_rows(self) -> int:
        return blocks(self._problem.seq, self._tokens)

    def _whole(self) -> Iterator[tuple[Part, int]]:
        """All tokens of every distinct block of rows of one head, and how many sequences have such a block."""
        for sequence, count in sequences(self._problem):
            for row in range(0, self._problem.rows(sequence), self._tokens):
                yield self._part(sequence, row, 0, lambda keys: keys), count

    def _part(self, sequence: int, row: int, split: int, part_keys: PartKeys) -> Part:
        """One part of the tokens that a block sees."""
        p = self._problem
        rows = min(self._tokens, p.rows(sequence) - row)
        first, end = p.first_key(row, sequence), p.visible_keys(row + rows - 1, sequence)
        keys = part_keys(max(0, end - first))
        first, last = first + split * keys, min(end, first + (split + 1) * keys)
        return Part(sequence, row, rows, *((first, last) if first < last else (0, 0)))

    def _diagonal(self, part: Part) -> int:
        """Where the mask of a part's first row ends; `NO_MASK` where it hides nothing."""
        p = self._problem
        if not p.causal or part.first == part.last:
            return NO_MASK
        diagonal = part.row + p.diagonal_of(part.sequence) - part.first
        hides_end = diagonal < part.last - part.first - 1
        hides_start = p.window > 0 and part.rows - 1 + diagonal >= p.window
        return diagonal if hides_end or hides_start else NO_MASK


PartKeys = Callable[[int], int]
"""Tokens of a block → tokens of each of its parts."""
Outputs = Callable[[int, View, View], tuple[View, ...]]
"""(part, view of O, view of LSE) of some rows of a head → where that part's results go."""


def even_parts(splits: int, step: int) -> PartKeys:
    """`splits` parts of equal numbers of steps."""
    return lambda keys: blocks(blocks(keys, step), splits) * step


def _one(views: Sequence[View]) -> AnyView:
    return views[0] if len(views) == 1 else stacked(views)


__all__ = ["FEATURES", "DecodeBlocks", "DecodeTiles", "block_shape", "even_parts", "keys_per_step"]
