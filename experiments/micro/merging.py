"""All CTAs read the same tiles at nearly the same time: how many requests for a line become one?

As measured: CTAs of 512 threads read the same 64 KiB tile, 64 tiles one after another, CTA b starting `skew` x b cycles
late. One access of 16 bytes per thread is in flight: measured, a row of 8 KiB takes 391 cycles, an L2 hit and the loop.
"""

from __future__ import annotations

from experiments.micro.pattern import ACCESS_BYTES, Pattern, buffer, every, groups_of, kernel
from traces.launch import WorkItem
from traces.ops import Load, Program, Vector, Wait
from traces.tensor import Matrix, TensorTable

__all__ = ["TILES", "TILE_BYTES", "lockstep"]

THREADS = 512
TILE_BYTES = 64 << 10
TILES = 64


def lockstep(skew_cycles: int, ctas: int, lanes: int, tiles: int = TILES) -> Pattern:
    """`ctas` CTAs, each starting `skew_cycles` after the one before; `lanes`: FP32 lanes of an SM, for the delay."""
    table = TensorTable()
    data = buffer(table, "tiles", tiles * TILE_BYTES, THREADS * ACCESS_BYTES)
    groups = groups_of(THREADS)
    rows = every(data, 0, 1)
    read = WorkItem((rows,), ())

    def work(cta: int) -> tuple[WorkItem, ...]:
        # The delay is an item of its own, so that all CTAs share the reading program.
        return WorkItem((rows,), (max(1, skew_cycles * cta * lanes),)), read

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        if parameters:
            return tuple(_wait(max(1, parameters[0] // groups)) for _ in range(groups))
        return tuple(_read(matrices[0], group, groups) for group in range(groups))

    launch = kernel(f"lockstep {ctas} CTAs skew {skew_cycles}", ctas, THREADS, work, agents)
    return Pattern(launch.name, table.tensors, (launch,))


def _wait(instructions: int) -> Program:
    """A group's share of the CTA's delay: the groups work through theirs in parallel."""
    yield Vector(lambda: None, (), instructions=instructions)


def _read(matrix: Matrix, group: int, groups: int) -> Program:
    width = matrix.cols // groups
    for row in range(matrix.rows):
        piece = yield Load(matrix.tile(row, 1, group * width, width))
        yield Wait(piece)
