"""One thread follows pointers: every load waits for the one before, so time over loads is the latency.

`chase` as measured on the H200: lines in random order, after all SMs together read the buffer twice (each line by one
SM). `chase_again` as in public benchmarks: the thread has been all over the buffer before, in the same order.
Long chases are sampled: no more than `SAMPLE` loads of lines that are all different.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.micro.capacity import CTAS, read_passes
from experiments.micro.pattern import ELEMENT, Pattern, buffer, every, kernel, readers
from traces.launch import KernelLaunch, WorkItem
from traces.ops import Load, Program, Wait
from traces.tensor import Matrix, Tensor, TensorTable

__all__ = ["SAMPLE", "chase", "chase_again", "chase_lines"]

LINE_BYTES = 128
SAMPLE = 16384
"""Loads that are enough: the mean of a mix of hits and misses is known to about 1 %."""
LOADS_PER_ITEM = 8
LOAD_BYTES = 32
"""A pointer of 8 bytes brings one sector of its line."""
ROW_BYTES = 16384


def chase_lines(lines: int, loads: int, seed: int = 1) -> list[int]:
    """`loads` line numbers: a random order of the lines, again and again."""
    order = np.random.default_rng(seed).permutation(lines)
    return [int(order[i % lines]) for i in range(loads)]


def chase(size_bytes: int, loads: int, ctas: int = CTAS) -> Pattern:
    """All SMs (`ctas` CTAs) read the buffer twice, then one thread follows `loads` pointers over it: compare that."""
    table = TensorTable()
    data = buffer(table, "buffer", size_bytes, ROW_BYTES)
    follow = _follow("chase", data, chase_lines(size_bytes // LINE_BYTES, loads))
    return Pattern(f"chase of {size_bytes} bytes", table.tensors, (read_passes("touch", data, 2, 0, ctas), follow))


def chase_again(size_bytes: int, loads: int) -> Pattern:
    """One SM reads the buffer from start to end, then one of its threads the first `loads` lines, in random order.

    They are the lines used longest ago: in a chase that goes round and round each next line is just that.
    """
    table = TensorTable()
    data = buffer(table, "buffer", size_bytes, ROW_BYTES)
    item = (WorkItem((every(data, 0, 1),), ()),)
    first = kernel("touch", 1, 1024, lambda cta: item, readers(4, 4))
    lines = min(loads, size_bytes // LINE_BYTES)
    return Pattern(
        f"chase of {size_bytes} bytes", table.tensors, (first, _follow("chase", data, chase_lines(lines, loads)))
    )


def _follow(name: str, data: Tensor, lines: Sequence[int]) -> KernelLaunch:
    whole, step, width = data.view(0, 0), *(size // ELEMENT.element_bytes for size in (LINE_BYTES, LOAD_BYTES))
    per_row = data.cols // step
    views = [whole.window(line // per_row, 1, line % per_row * step, width) for line in lines]
    starts = range(0, len(views) - LOADS_PER_ITEM + 1, LOADS_PER_ITEM)
    items = tuple(WorkItem(tuple(views[i : i + LOADS_PER_ITEM]), ()) for i in starts)

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (_loads(matrices),)

    return kernel(name, 1, 32, lambda cta: items, agents)


def _loads(matrices: tuple[Matrix, ...]) -> Program:
    for matrix in matrices:
        value = yield Load(matrix.tile(0, 1))
        yield Wait(value)
