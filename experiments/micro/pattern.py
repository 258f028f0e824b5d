"""What all patterns share: a buffer in rows, views that pick every n-th row, and the streaming programs.

A row is what the threads of one CTA touch with one 16-byte access each (1024 threads: 16 KiB). Each warp is an agent
of its own: it issues `depth` accesses per thread, waits for all of them, and goes on, as an unrolled grid-stride loop
does. So a CTA has depth x threads x access bytes in flight at most, and warps do not wait for each other. Where a
pattern is long, an agent stands for eight warps that do (`GROUP`). A reading loop adds each word to a sum, or the
compiler would drop the loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traces.dtypes import dtype
from traces.launch import Agents, CtaResources, KernelLaunch, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait
from traces.tensor import Matrix, Tensor, TensorTable, View

__all__ = [
    "ACCESS_BYTES",
    "GROUP",
    "MIB",
    "Pattern",
    "buffer",
    "copiers",
    "every",
    "groups_of",
    "kernel",
    "readers",
    "writers",
]

MIB = 1 << 20
ACCESS_BYTES = 16
"""Bytes of one thread's access (`ld.global.cg.v4`)."""
INSTRUCTIONS = 2
"""Instructions of a reading loop per access, besides adding each word to a running sum."""
WARP_THREADS = 32
GROUP = 8
"""Warps that an agent stands for in long patterns. They wait for the last refresh that any of their lines met."""
ELEMENT = dtype("fp32")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A `traces.launch.Workload`: kernels launched back to back on their buffers.

    Attributes:
        algorithm: name of the pattern.
        tensors: the buffers, in address order.
        launches: the kernels; which of them are compared with measurements is up to the caller.
    """

    algorithm: str
    tensors: tuple[Tensor, ...]
    launches: tuple[KernelLaunch, ...]


def buffer(table: TensorTable, name: str, size_bytes: int, row_bytes: int) -> Tensor:
    """A buffer of `size_bytes` in rows of `row_bytes`; the size must be whole rows."""
    if size_bytes % row_bytes:
        raise ValueError(f"buffer {name} of {size_bytes} bytes is not a whole number of rows of {row_bytes} bytes")
    return table.add(name, (1, 1, size_bytes // row_bytes, row_bytes // ELEMENT.element_bytes), ELEMENT)


def every(tensor: Tensor, first: int, step: int, rows: int | None = None) -> View:
    """Rows first, first + step, … of a buffer (of its first `rows` rows); none if `first` is past them."""
    end = tensor.rows if rows is None else rows
    count = max(0, -(-(end - first) // step))
    row_bytes = tensor.cols * ELEMENT.element_bytes
    return View(tensor, 0, 0, first, 0, count, tensor.cols, tensor.base + first * row_bytes, step * row_bytes)


def groups_of(threads: int, warps: int = 1) -> int:
    """Agents that stand for a CTA of `threads` threads, each for so many `warps`."""
    return max(1, threads // (warps * WARP_THREADS))


def kernel(
    name: str, ctas: int, threads: int, work: Callable[[int], Sequence[WorkItem]], agents: Agents
) -> KernelLaunch:
    """A launch of `ctas` CTAs that use no shared memory, 32 registers a thread."""
    return KernelLaunch(name, ctas, CtaResources(threads, 32, 0), work, agents)


def readers(groups: int, depth: int, access_bytes: int = ACCESS_BYTES, summing: bool = True) -> Agents:
    """Every group reads its part of each row of each matrix, `depth` rows at a time, and adds it up if `summing`."""
    per_word = 1 + INSTRUCTIONS * ELEMENT.element_bytes / access_bytes if summing else 0.0
    return _agents(groups, lambda matrices, group: _read(matrices, group, groups, depth, per_word))


def writers(groups: int, depth: int) -> Agents:
    """Every group writes its part of each row of each matrix."""
    return _agents(groups, lambda matrices, group: _write(matrices, group, groups, depth))


def copiers(groups: int, depth: int) -> Agents:
    """Every group reads its part of `depth` rows of the first matrix, and writes it to the second."""
    return _agents(groups, lambda matrices, group: _copy(matrices, group, groups, depth))


def _agents(groups: int, program: Callable[[tuple[Matrix, ...], int], Program]) -> Agents:
    def build(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return tuple(program(matrices, group) for group in range(groups))

    return build


def _read(matrices: tuple[Matrix, ...], group: int, groups: int, depth: int, per_word: float) -> Program:
    for matrix in matrices:
        width = matrix.cols // groups
        for row in range(0, matrix.rows, depth):
            piece = yield Load(matrix.tile(row, depth, group * width, width))
            yield Wait(piece)
            if per_word:
                words = min(depth, matrix.rows - row) * width
                yield Vector(lambda: None, (), instructions=int(words * per_word), results=0)


def _write(matrices: tuple[Matrix, ...], group: int, groups: int, depth: int) -> Program:
    for matrix in matrices:
        width = matrix.cols // groups
        for row in range(0, matrix.rows, depth):
            yield Store(matrix.tile(row, depth, group * width, width), None)


def _copy(matrices: tuple[Matrix, ...], group: int, groups: int, depth: int) -> Program:
    source, target = matrices
    width = source.cols // groups
    for row in range(0, source.rows, depth):
        piece = yield Load(source.tile(row, depth, group * width, width))
        yield Wait(piece)
        yield Store(target.tile(row, depth, group * width, width), piece)
