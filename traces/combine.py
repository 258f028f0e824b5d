"""Split-KV: how many splits, where their partial results lie, and the kernel that merges them.

Each split attends to a part of the keys and leaves its own normalised O and LSE in fp32; `combine` weighs them by
exp(LSE_split - LSE) ("Flash-Decoding", Dao et al. 2023; `flash_fwd_splitkv_combine_kernel` of the CUDA release).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait, find_place
from traces.softmax import Array
from traces.tensor import AnyView, Matrix, Tensor, TensorTable, View, stacked
from traces.traffic import Traffic

MAX_SPLITS = 128
PARTIALS = ("O_partial", "LSE_partial")

COMBINE_THREADS = 128
LOADS_IN_FLIGHT = 1
"""Partial tiles of O that a combine CTA usually has under way. The CUDA release waits for each: its combine kernels
take 740 cycles more per split with a cold L2 and 375 with a warm one, about one latency (experiments/measured/h200,
`decode_flash`)."""


def choose_splits(ctas: int, slots: int, kv_blocks: int) -> int:
    """Splits by the CUDA release's rule: the fewest within 85 % of the best wave efficiency, at most `MAX_SPLITS`.

    Args:
        ctas: CTAs without splitting (query blocks x heads x batch).
        slots: CTAs that the GPU runs at once. From 80 % of it on there is nothing to gain: 1.
        kv_blocks: blocks of keys of the longest sequence; split counts that leave some split without work are passed.
    """
    if ctas >= 0.8 * slots:
        return 1
    efficiency = {}
    for splits in range(1, min(MAX_SPLITS, slots, kv_blocks) + 1):
        if splits == 1 or -(-kv_blocks // splits) != -(-kv_blocks // (splits - 1)):
            waves = ctas * splits / slots
            efficiency[splits] = waves / -(-ctas * splits // slots)
    good = 0.85 * max(efficiency.values(), default=1.0)
    return next((splits for splits, value in efficiency.items() if value >= good), 1)


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial results of `splits` splits of each row of O, in memory order (batch, head, split, row).

    Attributes:
        splits: partial results per row.
        o: [batch, heads, splits x rows, dim_v] in fp32.
        lse: [batch, heads, splits, rows] in fp32; -inf where a split saw no key (its O is zero then).
    """

    splits: int
    o: Tensor
    lse: Tensor

    @classmethod
    def allocate(cls, table: TensorTable, o: Tensor, splits: int) -> Partials:
        """Room for the partial results of every row of `o`."""
        shapes = ((o.batch, o.heads, splits * o.rows, o.cols), (o.batch, o.heads, splits, o.rows))
        return cls(
            splits, *(table.add(name, shape, DTYPES["fp32"]) for name, shape in zip(PARTIALS, shapes, strict=True))
        )

    def block(self, split: int, o: View) -> tuple[View, View]:
        """(O, LSE) of one split for the rows that `o`, a view of the final O, covers."""
        rows = self.o.rows // self.splits
        return (
            self.o.view(o.batch, o.head).window(split * rows + o.row, o.rows),
            self.lse.view(o.batch, o.head).window(split, 1, o.row, o.rows),
        )

    def combine(
        self, o: Tensor, lse: Tensor | None = None, name: str = "combine", in_flight: int = LOADS_IN_FLIGHT
    ) -> KernelLaunch:
        """The launch that merges all splits into `o` and, where there is one, `lse` [batch, heads, 1, rows].

        A CTA of 128 threads takes a few rows, as the CUDA release: 4 of 128 columns, 8 of 64, else 16; they are of one
        head, or all rows of several. It has `in_flight` partial tiles of O under way; more than one in a loop that is
        unrolled.
        """
        rows = combine_rows_per_cta(o.cols)
        blocks, heads = -(-o.rows // rows), max(1, rows // o.rows)
        matrices = o.batch * o.heads

        def work(cta: int) -> Sequence[WorkItem]:
            group, block = divmod(cta, blocks)
            ends = [divmod(h, o.heads) for h in range(group * heads, min(matrices, (group + 1) * heads))]
            row, kept = block * rows, min(rows, o.rows - block * rows)
            views: tuple[AnyView, ...] = (
                stacked([self.o.view(*h).window(s * o.rows + row, kept) for s in range(self.splits) for h in ends]),
                stacked([self.lse.view(*h).window(0, self.splits, row, kept) for h in ends]),
                stacked([o.view(*h).window(row, kept) for h in ends]),
            )
            if lse is not None:
                views = (*views, stacked([lse.view(*h).window(0, 1, row, kept) for h in ends]))
            return [WorkItem(views, (len(ends),))]

        def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
            return (combine_rows(matrices, parameters[0], in_flight),)

        shared = 4 * rows * (self.splits + in_flight * o.cols)
        resources = CtaResources(COMBINE_THREADS, 64, shared)
        return KernelLaunch(name, -(-matrices // heads) * blocks, resources, work, agents, warps=4)

    @property
    def traffic(self) -> Traffic:
        """Every partial result is written once, by its split, and read once, by `combine`."""
        return {t.name: (t.size_bytes, t.size_bytes) for t in (self.o, self.lse)}


PLACE_CHAIN, WEIGHTS_CHAIN, ROUND_CHAIN = 140, 80, 10
"""Instructions one after another before the first load, for a row's weights and its LSE, and for a partial tile of an
unrolled loop (640, 490 and 80 cycles on an H200, less the exponentials and what loads take:
`python -m kernels_cupy decode_split --stamps FILE`)."""
LEFTOVER_CHAIN, WIDE_LEFTOVER_CHAIN = 45, 28
"""The same for a tile that is left over (230 cycles), and where a thread has several columns, whose leftovers are
unrolled too; fitted to our own kernels that are not held out."""
ROUND = 16
"""Splits to a round of a loop that is unrolled, half of it where a thread has several columns; what is left over is
taken one by one."""


def combine_rows_per_cta(cols: int) -> int:
    """Rows of O that one CTA merges."""
    return 4 if cols % 128 == 0 else 8 if cols % 64 == 0 else 16


def columns_at_once(cols: int) -> int:
    """Columns of O of a partial tile: four to a thread."""
    return COMBINE_THREADS * 4 // combine_rows_per_cta(cols)


def combine_rows(matrices: tuple[Matrix, ...], heads: int, in_flight: int) -> Program:
    """Merge the splits of a few rows. O is stacked split by split, LSE head by head: [heads x splits, rows of each]."""
    partial_o, partial_lse, o, *lse = matrices
    splits = partial_lse.rows // heads
    yield find_place(PLACE_CHAIN)
    partial_lses = yield Load(partial_lse.tile(0, partial_lse.rows))
    width = columns_at_once(o.cols)
    wanted = [(split, first) for first in range(0, o.cols, width) for split in range(splits)]
    tiles: list[Any] = []
    together, leftover = (ROUND, LEFTOVER_CHAIN) if o.cols <= width else (ROUND // 2, WIDE_LEFTOVER_CHAIN)
    whole = splits - splits % together if in_flight > 1 else splits

    def fetch(number: int) -> Program:
        """Have the loads of tile `number` and of those under way besides it started."""
        ahead = in_flight if number < len(wanted) and wanted[number][0] < whole else 1
        while len(tiles) < min(number + ahead, len(wanted)):
            split, first = wanted[len(tiles)]
            tiles.append((yield Load(partial_o.tile(split * o.rows, o.rows, first, width))))

    yield from fetch(0)
    yield Wait(partial_lses)
    weights, row_lse = yield Vector(
        lambda lses: merge_weights(lses.reshape(heads, splits, -1).swapaxes(0, 1).reshape(splits, -1)),
        (partial_lses,),
        exps=splits * o.rows,
        instructions=4 * splits * o.rows,
        results=2,
        chain=WEIGHTS_CHAIN,
    )
    for number, (split, first) in enumerate(wanted):
        target = o.tile(0, o.rows, first, width)
        if split == 0:
            output: Any = np.zeros((o.rows, target.cols), np.float32)
        yield Wait(tiles[number])
        output = yield Vector(
            lambda acc, w, part, split=split: acc + w[split][:, None] * part,
            (output, weights, tiles[number]),
            instructions=o.rows * target.cols,
            chain=0 if in_flight == 1 else ROUND_CHAIN if split < whole else leftover,
            elementwise=True,
        )
        tiles[number] = None
        yield from fetch(number + 1)
        if split == splits - 1:
            yield Store(target, output)
    for matrix in lse:
        yield Store(matrix.tile(0, matrix.rows), row_lse)


def merge_weights(lses: Array) -> tuple[Array, Array]:
    """Weights [splits, rows] of partial results with log-sum-exps `lses`, and the rows' own LSE [rows].

    Where every part is empty (-inf) the weights are 0 and the LSE is -inf: merging empty parts gives (0, -inf).
    """
    maximum = np.max(lses, axis=0)
    shifted = np.exp(lses - np.where(np.isfinite(maximum), maximum, 0), dtype=np.float32)
    total = shifted.sum(axis=0, dtype=np.float32)
    safe_total = np.where(total > 0, total, 1)
    lse = np.where(total > 0, maximum + np.log(safe_total), -np.inf)
    return (shifted / safe_total).astype(np.float32), lse.astype(np.float32)
