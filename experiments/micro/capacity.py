"""Reads and writes of one buffer, size after size: where does data stop fitting in the L2?

As measured: 264 CTAs of 1024 threads, grid-stride by pieces of 16 KiB. `read_fixed`: each byte is always read by the
same CTA; `read_shifted`: in pass r CTA b reads the pieces of CTA (b + 37 r) mod 264; each after a launch of two passes.
Then 1056 CTAs of 256 threads write the buffer once, and once more. `read_all`: every CTA reads the whole buffer.
"""

from __future__ import annotations

from experiments.micro.pattern import ACCESS_BYTES, MIB, Pattern, buffer, every, groups_of, kernel, readers, writers
from traces.launch import KernelLaunch, WorkItem
from traces.tensor import Tensor, TensorTable

__all__ = ["CTAS", "PASSES", "read_all", "read_passes", "reads_and_writes"]

CTAS = 264
THREADS = 1024
PASSES = 8
WARM_PASSES = 2
SHIFT = 37
DEPTH = 4
"""Accesses of a thread in flight: the loop is unrolled by four."""
WRITE_THREADS = 256


def reads_and_writes(mib: int, passes: int = PASSES, writes: bool = True, ctas: int = CTAS) -> Pattern:
    """The launches of one size in the measured order, on one buffer of `mib` MiB, by `ctas` CTAs (two per SM)."""
    table = TensorTable()
    data = buffer(table, "buffer", mib * MIB, THREADS * ACCESS_BYTES)
    warm = min(WARM_PASSES, passes)
    launches = [
        read_passes("read_fixed_warm2", data, warm, 0, ctas),
        read_passes("read_fixed", data, passes, 0, ctas),
        read_passes("read_shifted_warm2", data, warm, SHIFT, ctas),
        read_passes("read_shifted", data, passes, SHIFT, ctas),
    ]
    if writes:
        launches += [_write(name, data, ctas) for name in ("write_first", "write_again")]
    return Pattern(f"capacity of {mib} MiB", table.tensors, tuple(launches))


def read_passes(name: str, data: Tensor, passes: int, shift: int, ctas: int = CTAS) -> KernelLaunch:
    """`passes` grid-stride passes over the buffer, in pass r the pieces of the CTA `shift` x r further on."""

    def work(cta: int) -> tuple[WorkItem, ...]:
        return tuple(WorkItem((every(data, (cta + shift * r) % ctas, ctas),), ()) for r in range(passes))

    return kernel(name, ctas, THREADS, work, readers(groups_of(THREADS), DEPTH))


def read_all(mib: int, ctas: int = CTAS) -> Pattern:
    """Each of `ctas` CTAs reads the whole buffer, twice in a row."""
    table = TensorTable()
    data = buffer(table, "buffer", mib * MIB, THREADS * ACCESS_BYTES)
    item = (WorkItem((every(data, 0, 1),), ()),)
    names = ("read_all_first", "read_all")
    agents = readers(groups_of(THREADS), DEPTH)
    launches = tuple(kernel(name, ctas, THREADS, lambda cta: item, agents) for name in names)
    return Pattern(f"read_all of {mib} MiB", table.tensors, launches)


def _write(name: str, data: Tensor, reading_ctas: int) -> KernelLaunch:
    """The buffer written once, grid-stride, by four small CTAs for each that reads; a reader's piece holds several of
    their rows.
    """
    part = THREADS // WRITE_THREADS  # each row is shared by this many CTAs

    def work(cta: int) -> tuple[WorkItem, ...]:
        row, quarter = divmod(cta, part)
        view = every(data, row, reading_ctas)
        width = data.cols // part
        return (WorkItem((view.window(0, view.rows, quarter * width, width),), ()),)

    return kernel(name, reading_ctas * part, WRITE_THREADS, work, writers(groups_of(WRITE_THREADS), DEPTH))
