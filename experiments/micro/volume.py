"""L2 bandwidth against data volume as public benchmarks take it: more CTAs than SMs, several per piece of data.

CTAs of 1024 threads read 512 KiB each, 64 accesses of 8 bytes per thread; CTA b reads the pieces of b mod n, so n x 512 KiB
is the volume and CTAs that run at the same time share it when n is small.
"""

from __future__ import annotations

from experiments.micro.pattern import Pattern, buffer, every, groups_of, kernel, readers
from traces.launch import WorkItem
from traces.tensor import TensorTable

__all__ = ["PIECE_BYTES", "volume"]

THREADS = 1024
ACCESS_BYTES = 8
ROWS = 64
PIECE_BYTES = ROWS * THREADS * ACCESS_BYTES
DEPTH = 4
"""Accesses in flight per thread; a guess: the loop of 32 rounds of two loads is unrolled by the compiler."""


def volume(pieces: int, ctas: int) -> Pattern:
    """`ctas` CTAs read `pieces` pieces of 512 KiB in turn, twice in a row: compare the last launch."""
    table = TensorTable()
    data = buffer(table, "buffer", pieces * PIECE_BYTES, THREADS * ACCESS_BYTES)
    items = [(WorkItem((every(data, piece, pieces),), ()),) for piece in range(pieces)]
    agents = readers(groups_of(THREADS), DEPTH)
    launches = tuple(
        kernel(name, count, THREADS, lambda cta: items[cta % pieces], agents)
        for name, count in (("touch", max(pieces, ctas // 4)), ("read", ctas))
    )
    return Pattern(f"volume of {pieces} x 512 KiB", table.tensors, launches)
