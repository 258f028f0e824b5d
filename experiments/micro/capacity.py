"""Reads and writes of one buffer, size after size: where does data stop fitting in the L2?

As measured: 264 CTAs of 1024 threads, grid-stride by pieces of 16 KiB. `read_fixed`: each byte is always read by the
same CTA; `read_shifted`: in pass r CTA b reads the pieces of CTA (b + 37 r) mod 264; each after a launch of two passes.
Then 1056 CTAs of 256 threads write the buffer once, and once more. The sizes follow each other in one L2, each the
first part of one buffer, which was filled before: what one size leaves dirty, the next one's kernels write to memory.
`read_all`: every CTA reads the whole buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.micro.pattern import (
    ACCESS_BYTES,
    GROUP,
    MIB,
    Pattern,
    buffer,
    every,
    groups_of,
    kernel,
    readers,
    writers,
)
from traces.launch import KernelLaunch, WorkItem
from traces.tensor import Tensor, TensorTable

__all__ = ["CTAS", "PASSES", "read_all", "read_passes", "reads", "reads_and_writes"]

CTAS = 264
THREADS = 1024
PASSES = 8
WARM_PASSES = 2
SHIFT = 37
DEPTH = 4
"""Accesses of a thread in flight: the loop is unrolled by four."""
WRITE_THREADS = 256
FEW_CTAS = 24
"""Of a grid of so many some are on SMs of either partition."""


def reads(mib: int, passes: int = PASSES, ctas: int = CTAS) -> Pattern:
    """The reads of one size alone, on a buffer of `mib` MiB, by `ctas` CTAs (two per SM), `passes` times."""
    table = TensorTable()
    data = buffer(table, "buffer", mib * MIB, THREADS * ACCESS_BYTES)
    return Pattern(f"reads of {mib} MiB", table.tensors, tuple(_reads(data, mib, passes, ctas)))


def reads_and_writes(sizes_mib: Sequence[int], ctas: int = CTAS) -> Pattern:
    """The buffer filled, then the launches of every size, in the measured order: names end in the size, ` 28 MiB`."""
    table = TensorTable()
    data = buffer(table, "buffer", max(sizes_mib) * MIB, THREADS * ACCESS_BYTES)
    launches = [_write("fill", data, data.rows, ctas)]
    for mib in sizes_mib:
        launches += _reads(data, mib, PASSES, ctas)
        launches += [_write(f"{name} {mib} MiB", data, _rows(mib), ctas) for name in ("write_first", "write_again")]
    return Pattern("capacity", table.tensors, tuple(launches))


def _rows(mib: int) -> int:
    return mib * MIB // (THREADS * ACCESS_BYTES)


def _reads(data: Tensor, mib: int, passes: int, ctas: int) -> Iterator[KernelLaunch]:
    """Fixed readers, then moving ones, on the first `mib` MiB of the buffer."""
    for name, shift in (("read_fixed", 0), ("read_shifted", SHIFT)):
        for part, count in ((f"{name}_warm2", min(WARM_PASSES, passes)), (name, passes)):
            yield read_passes(f"{part} {mib} MiB", data, count, shift, ctas, _rows(mib))


def read_passes(
    name: str, data: Tensor, passes: int, shift: int, ctas: int = CTAS, rows: int | None = None
) -> KernelLaunch:
    """`passes` grid-stride passes over the buffer's first `rows` rows (all if None).

    In pass r a CTA reads the pieces of the one `shift` x r further on.
    """

    def work(cta: int) -> tuple[WorkItem, ...]:
        return tuple(WorkItem((every(data, (cta + shift * r) % ctas, ctas, rows),), ()) for r in range(passes))

    return kernel(name, ctas, THREADS, work, readers(groups_of(THREADS, GROUP), DEPTH))


def read_all(mib: int, ctas: int = CTAS) -> Pattern:
    """Each of `ctas` CTAs reads the whole buffer, when a few on either partition have read it.

    Measured after a launch of the same kind; what that leaves in the L2 is what these few leave.
    """
    table = TensorTable()
    data = buffer(table, "buffer", mib * MIB, THREADS * ACCESS_BYTES)
    item = (WorkItem((every(data, 0, 1),), ()),)
    agents = readers(groups_of(THREADS), DEPTH)
    sizes = (("read_all_first", min(ctas, FEW_CTAS)), ("read_all", ctas))
    launches = tuple(kernel(name, count, THREADS, lambda cta: item, agents) for name, count in sizes)
    return Pattern(f"read_all of {mib} MiB", table.tensors, launches)


def _write(name: str, data: Tensor, rows: int, reading_ctas: int) -> KernelLaunch:
    """The first `rows` rows written once, grid-stride, by four small CTAs for each that reads; a reader's piece holds
    several of their rows.
    """
    part = THREADS // WRITE_THREADS  # each row is shared by this many CTAs

    def work(cta: int) -> tuple[WorkItem, ...]:
        row, quarter = divmod(cta, part)
        view = every(data, row, reading_ctas, rows)
        width = data.cols // part
        return (WorkItem((view.window(0, view.rows, quarter * width, width),), ()),)

    return kernel(name, reading_ctas * part, WRITE_THREADS, work, writers(groups_of(WRITE_THREADS, GROUP), DEPTH))
