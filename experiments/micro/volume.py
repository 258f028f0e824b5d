"""L2 bandwidth against data volume as public benchmarks take it: more CTAs than SMs, several per piece of data.

`volume`: CTAs of 1024 threads read 512 KiB each, 64 accesses of 8 bytes per thread; CTA b reads the piece b mod n, so
n x 512 KiB is the volume, and CTAs that run at the same time share it when n is small. `shared`: every SM reads all of
the same buffer.
"""

from __future__ import annotations

from experiments.micro.pattern import Pattern, buffer, every, groups_of, kernel, readers
from traces.launch import WorkItem
from traces.tensor import TensorTable

__all__ = ["PIECE_BYTES", "shared", "volume"]

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
    agents = readers(groups_of(THREADS), DEPTH, ACCESS_BYTES)
    launches = tuple(
        kernel(name, count, THREADS, lambda cta: items[cta % pieces], agents)
        for name, count in (("touch", max(pieces, ctas // 4)), ("read", ctas))
    )
    return Pattern(f"volume of {pieces} x 512 KiB", table.tensors, launches)


def shared(size_bytes: int, ctas: int) -> Pattern:
    """`ctas` CTAs of 256 threads read the same buffer twice, 16 accesses of 4 bytes per thread in flight."""
    table = TensorTable()
    row_bytes = 1024
    data = buffer(table, "buffer", size_bytes // row_bytes * row_bytes, row_bytes)
    item = (WorkItem((every(data, 0, 1),), ()),)
    launches = tuple(kernel(name, ctas, 256, lambda cta: item, readers(1, 16, 4)) for name in ("touch", "read"))
    return Pattern(f"{ctas} CTAs share {size_bytes} bytes", table.tensors, launches)
