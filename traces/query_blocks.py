"""Blocks of query rows as work items: what the FlashAttention forwards share.

Each item binds a block of Q, O and LSE rows, and the rows of K and V that it attends to: those between the block of
keys with the first that its first row sees and the last that its last row sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from traces.combine import Partials
from traces.dtypes import DTYPES
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.problem import AttentionProblem
from traces.sequences import key_rows, query_rows
from traces.softmax import NO_MASK
from traces.tensor import Tensor, TensorTable
from traces.traffic import Traffic, blocks, written_once

CTA_ORDERS = ("m_fastest", "head_fastest", "longest_first", "swizzled")

FEATURES = ("lengths", "window", "dim_v")
"""What `QueryBlocks` does beyond the plain call (`AttentionProblem.require`)."""

SECTION_BYTES = 32 << 20
"""K and V of a section of the `swizzled` order: the part of an L2 that FlashAttention-3's scheduler counts on."""


class QueryBlocks:
    """The tensors Q, K, V, O, LSE of a problem, and its query blocks in a CTA order.

    Sequences of unequal lengths are packed (`traces.sequences`), and the grid is that of FlashAttention's varlen
    kernels: every sequence has as many CTAs as the longest one; a CTA past its sequence's end has no item.

    Args:
        problem: what is computed.
        tile_q: query rows per block.
        tile_kv: keys per step. Keys before a window are skipped, and keys split, in whole steps.
        cta_order: one of `CTA_ORDERS`; see `cta_position`.
        kv_order: one of `traces.schedule.KV_ORDERS`.
        section_heads: heads per section of the `swizzled` order; 0 for as many as fit in `SECTION_BYTES`.
        splits: parts that the keys of every block are split into. With more than one, items write partial results,
            and `combine` merges them.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        *,
        tile_q: int,
        tile_kv: int,
        cta_order: str,
        kv_order: str,
        section_heads: int = 0,
        splits: int = 1,
    ) -> None:
        p = self._problem = problem
        self._tile_q, self._tile_kv, self._splits = tile_q, tile_kv, splits
        self._cta_order, self._kv_order = cta_order, kv_order
        self._section = section_heads or heads_per_section(p)
        self._per_head = blocks(p.seq, tile_q)
        self._queries, self._keys = queries, keys = query_rows(p), key_rows(p)
        table = TensorTable()
        self._q = table.add("Q", (queries.batch, p.heads, queries.rows, p.dim), p.storage, p.layout)
        self._k = table.add("K", (keys.batch, p.kv_heads, keys.rows, p.dim), p.kv_storage, p.layout)
        self._v = table.add("V", (keys.batch, p.kv_heads, keys.rows, p.dim_v), p.v_storage, p.layout)
        self._o = table.add("O", (queries.batch, p.heads, queries.rows, p.dim_v), p.output_storage, p.layout)
        self._lse = table.add("LSE", (queries.batch, p.heads, 1, queries.rows), DTYPES["fp32"])
        self._partials = Partials.allocate(table, self._o, splits) if splits > 1 else None
        self.tensors: tuple[Tensor, ...] = table.tensors

    def __len__(self) -> int:
        """CTAs of the grid, those past the end of a short sequence included."""
        return self._problem.batch * self._problem.heads * self._per_head * self._splits

    def items(self, number: int) -> list[WorkItem]:
        """The work of CTA `number`: one block, or none.

        Views are (Q, K, V, O, LSE), parameters (diagonal, whether KV blocks go backward). Local row r sees local key j
        up to r + diagonal, and from r + diagonal - window + 1 on with a window.
        """
        p, tile_q = self._problem, self._tile_q
        shape = p.batch, p.heads, self._per_head, self._splits
        b, h, block, split = cta_position(number, *shape, self._cta_order, self._section)
        row = block * tile_q
        if row >= p.rows(b):
            return []
        first, last = attended_keys(p, b, row, tile_q, self._tile_kv, split, self._splits)
        o = self._queries.view(self._o, b, h).window(row, tile_q)
        lse = self._queries.columns(self._lse, b, h).window(0, 1, row, tile_q)
        views = (
            self._queries.view(self._q, b, h).window(row, tile_q),
            self._keys.view(self._k, b, h // p.group).window(first, last - first),
            self._keys.view(self._v, b, h // p.group).window(first, last - first),
            *((o, lse) if self._partials is None else self._partials.block(split, o)),
        )
        diagonal = row + p.diagonal_of(b) - first if p.causal else NO_MASK
        backward = self._kv_order == "backward" or (self._kv_order == "sawtooth" and block % 2 == 1)
        return [WorkItem(views, (diagonal, int(backward)))]

    def combine(self) -> tuple[KernelLaunch, ...]:
        """The kernel that merges the splits, where there are any."""
        return () if self._partials is None else (self._partials.combine(self._o, self._lse),)


def heads_per_section(p: AttentionProblem) -> int:
    """Query heads whose K and V fit in `SECTION_BYTES`: a power of two of KV heads, at least one."""
    one = p.seq_kv * (p.dim * p.kv_storage.element_bytes + p.dim_v * p.v_storage.element_bytes)
    return p.group << max(0, (SECTION_BYTES // one).bit_length() - 1)


def cta_position(
    cta: int, batch: int, heads: int, q_blocks: int, splits: int, order: str, section: int
) -> tuple[int, int, int, int]:
    """(sequence, head, query block, split) of CTA `cta`.

    - `m_fastest`: FlashAttention-2's grid (query blocks, batch, heads), or (query blocks, splits, batch x heads).
    - `head_fastest`: splits, then heads, then sequences, then query blocks.
    - `longest_first`: the same from the last query block on, which sees the most keys under a causal mask.
    - `swizzled`: `longest_first` within sections of `section` heads (of any sequences), one section after another, so
      that the keys of a section stay in the L2 (FlashAttention-3's `SingleTileLPTScheduler`).
    """
    if order == "m_fastest":
        rest, block = divmod(cta, q_blocks)
        if splits == 1:
            h, b = divmod(rest, batch)
            return b, h, block, 0
        rest, split = divmod(rest, splits)
        return *divmod(rest, heads), block, split
    rest, split = divmod(cta, splits)
    matrices = batch * heads
    first = rest // (section * q_blocks) * section if order == "swizzled" else 0
    block, within = divmod(rest - first * q_blocks, min(section, matrices - first) if order == "swizzled" else matrices)
    return *divmod(first + within, heads), block if order == "head_fastest" else q_blocks - 1 - block, split


def attended_keys(
    p: AttentionProblem, b: int, row: int, tile_q: int, tile_kv: int, split: int, splits: int
) -> tuple[int, int]:
    """(first key, one past the last) of one split of the block of sequence `b` that starts at `row`.

    Whole steps of keys that no row of the block sees are left out. Splits are of equal numbers of steps of the whole
    sequence, so under a mask some have nothing to do: (0, 0).
    """
    first = p.first_key(row, b) // tile_kv * tile_kv
    last = p.visible_keys(min(row + tile_q, p.rows(b)) - 1, b)
    part = blocks(blocks(p.keys(b), tile_kv), splits) * tile_kv
    first, last = max(first, split * part), min(last, (split + 1) * part)
    return (first, last) if first < last else (0, 0)


def query_block_bytes(plan: Plan, tile_q: int, tile_kv: int, splits: int = 1) -> Traffic:
    """SM-port bytes of `QueryBlocks`: a block that attends to any key reads its queries and those keys.

    With splits, a partial O and LSE per split is written and read again.
    """
    p = plan.problem
    rows = keys = 0
    for b, row, split in _block_splits(p, tile_q, splits):
        first, last = attended_keys(p, b, row, tile_q, tile_kv, split, splits)
        keys += last - first
        rows += min(tile_q, p.rows(b) - row) if first < last else 0
    same = 1 if p.lengths else p.batch
    k_bytes, v_bytes = p.dim * p.kv_storage.element_bytes, p.dim_v * p.v_storage.element_bytes
    read = {"Q": rows * p.dim * p.storage.element_bytes, "K": keys * k_bytes, "V": keys * v_bytes}
    traffic = {name: (same * p.heads * n, 0) for name, n in read.items()} | written_once(plan, "O", "LSE")
    if splits == 1:
        return traffic
    return traffic | Partials(splits, plan.tensor("O_partial"), plan.tensor("LSE_partial")).traffic


def _block_splits(p: AttentionProblem, tile_q: int, splits: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, first row, split) of one head; of one sequence only where all are alike."""
    for b in range(p.batch if p.lengths else 1):
        for row in range(0, p.rows(b), tile_q):
            for split in range(splits):
                yield b, row, split
