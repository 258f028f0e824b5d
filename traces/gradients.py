"""What the backward passes share: the tensors around them, and small kernels that work on rows.

With grouped queries a KV head's gradients are sums over its query heads. Where heads work apart, each writes its own
dK and dV into expanded tensors [batch, kv_heads, group x seq_kv, d], and a kernel sums the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait, find_place
from traces.problem import AttentionProblem
from traces.softmax import mask_scores
from traces.tensor import Matrix, Tensor, TensorTable, View

Array = NDArray[np.float32]
Item = TypeVar("Item")

INPUTS = ("Q", "K", "V", "O", "LSE", "dO")
OUTPUTS = ("dQ", "dK", "dV")

P_INSTRUCTIONS = 3
"""fp32 instructions per element of P = exp(scale S - LSE): multiply-subtract, and half of two conversions."""
DS_INSTRUCTIONS = 3
"""fp32 instructions per element of dS = P (dP - D): subtract, multiply, convert."""
PLACE_CHAIN = 160
"""Instructions of the backward pass's kernels before their first load: three divisions, 64-bit addresses. 730 cycles
with one CTA of 256 threads on an SM, 1040 to 1180 with four: `python -m kernels_cupy flash2_backward --heads 1
--seq 4096 --dim 128 --l2 warm --stamps FILE`, and the same with --heads 16."""
ROW_THREADS = 256
ROW_WARPS = ROW_THREADS // 32
ROW_REGISTERS = 40
"""Of the kernels on rows in kernels_cupy (gradient_rows.cu: 32 to 40)."""
CONVERT_ROUNDS = (2, 1, 1)
"""Passes of our own `convert` whose loads are under way together, of every four: the compiler unrolls its loop, and
stores what one round brought when it has sent the next one's loads (nvdisasm of gradient_rows.cu)."""
SUM_ROUNDS = (1, 1, 2)
"""Likewise of every four query heads whose gradients are summed."""


def probabilities(scores: Array, lse: Array, first_key: int, diagonal: int) -> Array:
    """P of scaled scores, recomputed from each row's log-sum-exp [1, rows]; rows without a visible key are 0."""
    rows = lse.T
    return np.exp(mask_scores(scores, first_key, diagonal) - np.where(np.isfinite(rows), rows, 0), dtype=np.float32)


def score_gradient(p: Array, dp: Array, row_sums: Array) -> Array:
    """dS = P (dP - D) with D = rowsum(dO O) = rowsum(P dP), [1, rows]."""
    return (p * (dp - row_sums.T)).astype(np.float32)


def transposed_probabilities(scores: Array, lse: Array, scale: float, first_key: int, diagonal: int) -> Array:
    """`probabilities` with a row per key and a column per query, of scores that are so too and not scaled yet."""
    return probabilities(scores.T * np.float32(scale), lse, first_key, diagonal).T


def transposed_gradient(p: Array, dp: Array, row_sums: Array) -> Array:
    """`score_gradient` with a row per key and a column per query."""
    return score_gradient(p.T, dp.T, row_sums).T


class GradientTensors:
    """The tensors of a FlashAttention backward pass: its inputs, D, and the fp32 sum that dQ is converted from."""

    def __init__(self, p: AttentionProblem) -> None:
        self.problem, self.table = p, TensorTable()
        fp32 = DTYPES["fp32"]
        queries, keys = (p.batch, p.heads, p.seq), (p.batch, p.kv_heads, p.seq_kv)
        self.q = self.table.add("Q", (*queries, p.dim), p.storage, p.layout)
        self.k = self.table.add("K", (*keys, p.dim), p.kv_storage, p.layout)
        self.v = self.table.add("V", (*keys, p.dim_v), p.v_storage, p.layout)
        self.o = self.table.add("O", (*queries, p.dim_v), p.storage, p.layout)
        self.lse = self.table.add("LSE", (p.batch, p.heads, 1, p.seq), fp32)
        self.do = self.table.add("dO", (*queries, p.dim_v), p.storage, p.layout)
        self.d = self.table.add("D", (p.batch, p.heads, 1, p.seq), fp32)
        self.dq_sum = self.table.add("dQ_sum", (*queries, p.dim), fp32)
        self.dq = self.table.add("dQ", (*queries, p.dim), p.storage, p.layout)
        self.dk = self.table.add("dK", (*keys, p.dim), p.kv_storage, p.layout)
        self.dv = self.table.add("dV", (*keys, p.dim_v), p.v_storage, p.layout)


def per_query_head(table: TensorTable, p: AttentionProblem, of: Tensor) -> Tensor:
    """The expanded tensor whose parts sum up to `of` (dK or dV); `of` itself where no heads share it."""
    if p.group == 1:
        return of
    return table.add(f"{of.name}_heads", (p.batch, p.kv_heads, p.group * p.seq_kv, of.cols), of.dtype)


def head_part(p: AttentionProblem, expanded: Tensor, b: int, h: int) -> View:
    """Query head `h`'s own rows of an expanded tensor."""
    return expanded.view(b, h // p.group).window(h % p.group * p.seq_kv if p.group > 1 else 0, p.seq_kv)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a product, and which of its sides are cut to the output tile.

    Attributes:
        tensor: indexed by query head, or (K, V and their gradients) by what serves it.
        rows, cols: `m` where the side runs with the rows of the output, `n` with its columns, empty where all of it
            takes part in every tile.
    """

    tensor: Tensor
    rows: str
    cols: str

    def view(self, p: AttentionProblem, b: int, h: int, m: tuple[int, int], n: tuple[int, int]) -> View:
        """The part of head `h` that the tile at rows `m`, columns `n` (start, length) takes."""
        kept = {"m": m, "n": n}
        if self.tensor.name.endswith("_heads"):
            whole = head_part(p, self.tensor, b, h)
        else:
            whole = self.tensor.view(b, h if self.tensor.heads == p.heads else h // p.group)
        return whole.window(*kept.get(self.rows, (0, whole.rows)), *kept.get(self.cols, (0, whole.cols)))


@dataclass(frozen=True, slots=True)
class RowWarps:
    """Warps of a CTA that work on its rows and wait for no others: one of its eight, or (`count` 1) all together.

    Attributes:
        number, count: which of how many.
        at_once: rows that the CTA has under way; 0: all of its own.
    """

    number: int
    count: int
    at_once: int

    def find_place(self) -> Vector:
        """What these warps do before their first load."""
        return find_place(PLACE_CHAIN, ROW_THREADS // self.count)

    def passes(self, rows: int) -> list[tuple[int, int]]:
        """(first row, rows) of each of their passes over a CTA's `rows` rows."""
        step, found = self.at_once or max(1, rows), []
        for row in range(0, rows, step):
            length = min(step, rows - row)
            first, end = (length * number // self.count for number in (self.number, self.number + 1))
            if end > first:
                found.append((row + first, end - first))
        return found


Rows = Callable[[tuple[Matrix, ...], RowWarps], Program]


def row_kernel(
    name: str, tensors: Sequence[Tensor], rows: int, tile: int, program: Rows, at_once: int = 0
) -> KernelLaunch:
    """A kernel whose CTAs take `tile` of `rows` rows each of every tensor: grid (blocks, batch, heads), blocks fastest.

    Args:
        rows: of a head. A tensor [.., .., 1, rows] gives a piece of its only row; an expanded one all rows from the
            first part's piece to the last part's.
        at_once: rows that a CTA has under way, shared by its warps; 0: all of its own, by all warps together.
    """
    batch, heads = tensors[0].batch, tensors[0].heads
    blocks = -(-rows // tile)
    warps = ROW_WARPS if at_once else 1

    def view(tensor: Tensor, b: int, h: int, row: int) -> View:
        whole = tensor.view(b, h)
        if tensor.rows == 1 and tensor.cols == rows:
            return whole.window(0, 1, row, tile)
        return whole.window(row, tensor.rows - rows + min(tile, rows - row))

    def work(cta: int) -> Sequence[WorkItem]:
        rest, block = divmod(cta, blocks)
        h, b = divmod(rest, batch)
        return [WorkItem(tuple(view(t, b, h, block * tile) for t in tensors), ())]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return tuple(program(matrices, RowWarps(number, warps, at_once)) for number in range(warps))

    resources = CtaResources(ROW_THREADS, ROW_REGISTERS, 0)
    return KernelLaunch(name, batch * heads * blocks, resources, work, agents, warps=ROW_WARPS // warps)


def preprocess(t: GradientTensors, tile: int, at_once: int = 0) -> KernelLaunch:
    """D = rowsum(dO O), and zeros where dQ is summed. A CTA has `at_once` rows (0: all of its own) under way."""

    def program(matrices: tuple[Matrix, ...], mine: RowWarps) -> Program:
        o, do, d, dq_sum = matrices
        yield mine.find_place()
        for row, rows in mine.passes(o.rows):
            o_tile = yield Load(o.tile(row, rows))
            do_tile = yield Load(do.tile(row, rows))
            yield Wait(o_tile)
            yield Wait(do_tile)
            sums = yield Vector(
                lambda x, y: np.sum(x * y, axis=1, dtype=np.float32),
                (o_tile, do_tile),
                instructions=2 * rows * o.cols,
            )
            yield Store(d.tile(0, 1, row, rows), sums)
        for row, rows in mine.passes(dq_sum.rows):
            yield Store(dq_sum.tile(row, rows), np.zeros((rows, dq_sum.cols), np.float32))

    return row_kernel("row_sums", (t.o, t.do, t.d, t.dq_sum), t.problem.seq, tile, program, at_once)


def zero(name: str, tensor: Tensor, tile: int) -> KernelLaunch:
    """A kernel that clears a tensor."""

    def program(matrices: tuple[Matrix, ...], mine: RowWarps) -> Program:
        (x,) = matrices
        yield mine.find_place()
        yield Store(x.tile(0, x.rows), np.zeros((x.rows, x.cols), np.float32))

    return row_kernel(name, (tensor,), tensor.rows, tile, program)


def convert(name: str, source: Tensor, target: Tensor, tile: int, scale: float = 1.0, at_once: int = 0) -> KernelLaunch:
    """target = scale x source, in the target's format. A CTA has `at_once` rows (0: all of its own) under way."""

    def program(matrices: tuple[Matrix, ...], mine: RowWarps) -> Program:
        total, result = matrices
        yield mine.find_place()
        scaled: list[tuple[tuple[int, int], Any]] = []
        todo = mine.passes(total.rows)
        left = len(todo) % sum(CONVERT_ROUNDS)
        for together in (*rounds(todo[:left], (1,)), *rounds(todo[left:], CONVERT_ROUNDS)):
            loaded = []
            for rows in together:
                loaded.append((rows, (yield Load(total.tile(*rows)))))
            for rows, values in scaled:
                yield Store(result.tile(*rows), values)
            scaled = []
            for rows, values in loaded:
                yield Wait(values)
                instructions = 2 * rows[1] * total.cols
                value = yield Vector(
                    lambda x: x * np.float32(scale), (values,), instructions=instructions, elementwise=True
                )
                scaled.append((rows, value))
        for rows, values in scaled:
            yield Store(result.tile(*rows), values)

    return row_kernel(name, (source, target), target.rows, tile, program, at_once)


def rounds(items: Sequence[Item], sizes: Sequence[int]) -> Iterator[Sequence[Item]]:
    """The items in groups of `sizes`, again and again; what is left of the last sizes one by one."""
    first, step = 0, sum(sizes)
    while first + step <= len(items):
        for size in sizes:
            yield items[first : first + size]
            first += size
    for last in range(first, len(items)):
        yield items[last : last + 1]


def sum_heads(p: AttentionProblem, expanded: Tensor, target: Tensor, tile: int, at_once: int = 0) -> list[KernelLaunch]:
    """target = sum of the query heads' parts, one after another in fp32; no kernel where there is one part.

    A CTA has `at_once` rows (0: all of its own) under way.
    """
    if p.group == 1:
        return []

    def program(matrices: tuple[Matrix, ...], mine: RowWarps) -> Program:
        result, parts = matrices
        yield mine.find_place()
        for row, rows in mine.passes(result.rows):
            total: Any = np.zeros((rows, result.cols), np.float32)
            for heads in rounds(range(p.group), SUM_ROUNDS):
                loaded = []
                for head in heads:
                    loaded.append((yield Load(parts.tile(head * p.seq_kv + row, rows))))
                for part in loaded:
                    yield Wait(part)
                    instructions = 2 * rows * result.cols
                    total = yield Vector(np.add, (total, part), instructions=instructions, elementwise=True)
            yield Store(result.tile(row, rows), total)

    return [row_kernel(f"sum_{target.name}", (target, expanded), p.seq_kv, tile, program, at_once)]
