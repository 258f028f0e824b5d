"""K and V of the sequences being decoded: what their tensors are, and the views of a range of tokens.

A contiguous cache has the rows of each sequence one after another (`traces.sequences`); a paged one has them on pages
anywhere in memory (`traces.paging`), found through a block table that programs load too. With latent attention (MLA)
there is one tensor KV, whose first `dim_v` columns are V. What dequantises a quantised cache lies as its tokens do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from traces.dtypes import DTYPES
from traces.kv_tiles import BESIDE, Dequantisation, kv_bytes
from traces.launch import Plan
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
    if p.mla and "quantised_kv" in p.features:
        raise ValueError(f"kv_dtype {p.kv_dtype} with mla is not supported: a latent is not dequantised")
    k_shape, v_shape = ((batch, p.kv_heads, rows, dim) for dim in (p.dim, p.dim_v))
    if p.mla:
        return (table.add("KV", k_shape, p.kv_storage, layout),)
    return table.add("K", k_shape, p.kv_storage, layout), table.add("V", v_shape, p.v_storage, layout)


class ContiguousCache:
    """Rows of a sequence one after another; sequences of unequal lengths packed."""

    def __init__(self, problem: AttentionProblem, table: TensorTable) -> None:
        self._problem, self._rows = problem, key_rows(problem)
        shape = self._rows.batch, self._rows.rows
        self._tensors = cache_tensors(problem, table, *shape, problem.layout)
        self._dequantisation = Dequantisation(table, problem, *shape)

    @property
    def inputs(self) -> tuple[str, ...]:
        return *(t.name for t in self._tensors), *self._dequantisation.names

    def views(self, sequence: int, kv_head: int, first: int, last: int) -> tuple[tuple[AnyView, ...], int]:
        def tokens(tensor: Tensor) -> AnyView:
            return self._rows.view(tensor, sequence, kv_head).window(first, last - first)

        return (*map(tokens, self._tensors), *self._dequantisation.views(sequence, kv_head, tokens)), 0

    def bytes_read(self, sequence: int, first: int, last: int) -> dict[str, int]:
        tensors = (*self._tensors, *self._dequantisation.tensors)
        return kv_bytes(tensors, self._problem, last - first, int(first < last))


class PagedCache:
    """Pages [pages, page size, kv_heads, dim] (vLLM's NHD layout), and the int32 table of where each sequence's are."""

    def __init__(self, problem: AttentionProblem, table: TensorTable, block_table: BlockTable) -> None:
        self._problem, self._table = problem, block_table
        pages = block_table.page_count, block_table.page_size
        self._tensors = cache_tensors(problem, table, *pages, "bshd")
        self._dequantisation = Dequantisation(table, problem, *pages)
        shape = (1, 1, len(block_table.pages), block_table.width)
        self._block_table = table.add("block_table", shape, DTYPES["int32"])

    @property
    def inputs(self) -> tuple[str, ...]:
        return *(t.name for t in self._tensors), self._block_table.name, *self._dequantisation.names

    def views(self, sequence: int, kv_head: int, first: int, last: int) -> tuple[tuple[AnyView, ...], int]:
        size = self._table.page_size
        low, high = self._range(first, last)
        pages, rows = self._table.pages[sequence][low:high], max(0, last - low * size)
        entries = self._block_table.view(0, 0).window(sequence, 1, low, high - low)

        def tokens(tensor: Tensor) -> AnyView:
            head = tensor.view(0, kv_head)
            page_bytes = size * tensor.heads * row_bytes(tensor)
            addresses = tuple(head.address + page * page_bytes for page in pages)
            return StackedView(tensor, addresses, size, rows, tensor.cols, head.pitch_bytes)

        beside = self._dequantisation.views(sequence, kv_head, tokens)
        return (entries, *map(tokens, self._tensors), *beside), first - low * size if pages else 0

    def bytes_read(self, sequence: int, first: int, last: int) -> dict[str, int]:
        low, high = self._range(first, last)
        tensors = (*self._tensors, *self._dequantisation.tensors)
        read = kv_bytes(tensors, self._problem, last - first, int(first < last))
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


def cache_textbook(plan: Plan) -> Traffic:
    """What the literature counts for a cache: the tokens that a sequence's rows see, once per KV head.

    Scales that a sequence shares, and which channels are outliers, are read once.
    """
    p = plan.problem
    tokens = sum(count * (last - first) for b, count in sequences(p) for first, last in [attended(p, b)])
    moved = kv_bytes(plan.tensors, p, p.kv_heads * tokens, p.kv_heads * p.batch)
    return {
        name: (min(count, plan.tensor(name).size_bytes) if name in BESIDE else count, 0)
        for name, count in moved.items()
    }
