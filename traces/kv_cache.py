"""K and V of the sequences being decoded: what their tensors are, and the views of a range of tokens.

A contiguous cache has the rows of each sequence one after another (`traces.sequences`); a paged one has them on pages
anywhere in memory (`traces.paging`), found through a block table that programs load too. With latent attention (MLA)
there is one tensor KV, whose first `dim_v` columns are V.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from traces.dtypes import DTYPES
from traces.paging import BlockTable
from traces.problem import AttentionProblem
from traces.sequences import key_rows
from traces.tensor import AnyView, StackedView, Tensor, TensorTable
from traces.traffic import Traffic, blocks

Shape = tuple[int, int, int, int]


class KvCache(Protocol):
    """A cache as work items see it.

    Attributes:
        inputs: names of its tensors.
    """

    @property
    def inputs(self) -> tuple[str, ...]: ...

    def views(self, sequence: int, kv_head: int, first: int, last: int) -> tuple[tuple[AnyView, ...], int]:
        """Views that hold tokens [first, last) of a head, and the row of their first one: K and V (or KV) and, before
        them, the row of a block table.
        """
        ...

    def bytes_read(self, sequence: int, first: int, last: int) -> dict[str, int]:
        """Bytes that loading tokens [first, last) of one KV head takes, by tensor."""
        ...


def cache_tensors(p: AttentionProblem, table: TensorTable, batch: int, rows: int, layout: str) -> tuple[Tensor, ...]:
    """K and V, or KV, as [batch, kv_heads, rows, dim]."""
    k_shape, v_shape = ((batch, p.kv_heads, rows, dim) for dim in (p.dim, p.dim_v))
    if p.mla:
        return (table.add("KV", k_shape, p.kv_storage, layout),)
    return table.add("K", k_shape, p.kv_storage, layout), table.add("V", v_shape, p.v_storage, layout)


class ContiguousCache:
    """Rows of a sequence one after another; sequences of unequal lengths packed."""

    def __init__(self, problem: AttentionProblem, table: TensorTable) -> None:
        self._rows = key_rows(problem)
        self._tensors = cache_tensors(problem, table, self._rows.batch, self._rows.rows, problem.layout)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(t.name for t in self._tensors)

    def views(self, sequence: int, kv_head: int, first: int, last: int) -> tuple[tuple[AnyView, ...], int]:
        whole = (self._rows.view(t, sequence, kv_head) for t in self._tensors)
        return tuple(view.window(first, last - first) for view in whole), 0

    def bytes_read(self, sequence: int, first: int, last: int) -> dict[str, int]:
        return {t.name: (last - first) * row_bytes(t) for t in self._tensors}


class PagedCache:
    """Pages [pages, page size, kv_heads, dim] (vLLM's NHD layout), and the int32 table of where each sequence's are."""

    def __init__(self, problem: AttentionProblem, table: TensorTable, block_table: BlockTable) -> None:
        self._table = block_table
        self._tensors = cache_tensors(problem, table, block_table.page_count, block_table.page_size, "bshd")
        shape = (1, 1, len(block_table.pages), block_table.width)
        self._block_table = table.add("block_table", shape, DTYPES["int32"])

    @property
    def inputs(self) -> tuple[str, ...]:
        return *(t.name for t in self._tensors), self._block_table.name

    def views(self, sequence: int, kv_head: int, first: int, last: int) -> tuple[tuple[AnyView, ...], int]:
        size = self._table.page_size
        low, high = self._range(first, last)
        pages, rows = self._table.pages[sequence][low:high], max(0, last - low * size)
        entries = self._block_table.view(0, 0).window(sequence, 1, low, high - low)
        views: list[AnyView] = [entries]
        for t in self._tensors:
            head = t.view(0, kv_head)
            page_bytes = size * head.pitch_bytes
            addresses = tuple(head.address + page * page_bytes for page in pages)
            views.append(StackedView(t, addresses, size, rows, t.cols, head.pitch_bytes))
        return tuple(views), first - low * size if pages else 0

    def bytes_read(self, sequence: int, first: int, last: int) -> dict[str, int]:
        low, high = self._range(first, last)
        read = {t.name: (last - first) * row_bytes(t) for t in self._tensors}
        return read | {self._block_table.name: (high - low) * self._block_table.dtype.element_bytes}

    def _range(self, first: int, last: int) -> tuple[int, int]:
        """Pages [low, high) of a sequence that hold its tokens [first, last)."""
        size = self._table.page_size
        return (first // size, blocks(last, size)) if first < last else (0, 0)


def row_bytes(tensor: Tensor) -> int:
    """Bytes of one token of one head."""
    return tensor.cols * tensor.dtype.element_bytes


def attended(p: AttentionProblem, sequence: int) -> tuple[int, int]:
    """[first, last) token of a sequence that any of its query rows sees."""
    rows = p.rows(sequence)
    if not rows:
        return 0, 0
    first, last = p.first_key(0, sequence), p.visible_keys(rows - 1, sequence)
    return (first, last) if first < last else (0, 0)


def sequences(p: AttentionProblem) -> Iterator[tuple[int, int]]:
    """(sequence, how many are like it) of every distinct sequence."""
    return iter([(b, 1) for b in range(p.batch)] if p.lengths else [(0, p.batch)])


def cache_textbook(p: AttentionProblem) -> Traffic:
    """What the literature counts for a cache: the tokens that a sequence's rows see, once per KV head."""
    tokens = sum(count * (last - first) for b, count in sequences(p) for first, last in [attended(p, b)])
    tokens *= p.kv_heads
    k_bytes, v_bytes = p.dim * p.kv_storage.element_bytes, p.dim_v * p.v_storage.element_bytes
    if p.mla:
        return {"KV": (tokens * k_bytes, 0)}
    return {"K": (tokens * k_bytes, 0), "V": (tokens * v_bytes, 0)}
