"""Bandwidth by number of SMs, by threads per SM, and of writing and copying: who limits, the SM or the memory?

One CTA per SM reads every n-th row, four accesses of 16 bytes per thread in flight. `from_l2`: 64 KiB per CTA, read
once before. `from_dram`: an empty L2, each row once. `blocks`: many small CTAs, one access each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from experiments.micro.pattern import (
    ACCESS_BYTES,
    MIB,
    Pattern,
    buffer,
    copiers,
    every,
    groups_of,
    kernel,
    readers,
    writers,
)
from traces.launch import Agents, CtaResources, KernelLaunch, WorkItem
from traces.tensor import Tensor, TensorTable

__all__ = ["blocks", "copy", "from_dram", "from_l2", "spread", "write"]

DEPTH = 4
L2_BYTES_PER_CTA = 64 << 10
L2_PASSES = 24
DRAM_BATCHES = 24
"""Waits of a thread in `from_dram`: enough to make the start and the end of the kernel small."""


def from_l2(reading: Sequence[int], grid: int, threads: int = 1024, depth: int = DEPTH) -> Pattern:
    """CTAs `reading` of a grid that fills the GPU read 64 KiB each, once, then `L2_PASSES` times: compare the last.

    The first of a grid are on SMs that follow each other in the CTA order.
    """
    row_bytes = threads * ACCESS_BYTES
    table = TensorTable()
    rows = max(L2_BYTES_PER_CTA // row_bytes, depth)
    data = buffer(table, "buffer", len(reading) * rows * row_bytes, row_bytes)
    rank = {cta: number for number, cta in enumerate(reading)}
    launches = tuple(
        _read(name, data, rank, threads, n, depth, grid) for name, n in (("touch", 1), ("read", L2_PASSES))
    )
    return Pattern(f"L2 to {len(reading)} CTAs", table.tensors, launches)


def spread(count: int, gpcs: Sequence[int]) -> list[int]:
    """The first `count` CTAs of a grid of one per SM when one is taken from each GPC in turn.

    Args:
        gpcs: GPC of the SM of each CTA.
    """
    members: dict[int, list[int]] = {}
    for cta, gpc in enumerate(gpcs):
        members.setdefault(gpc, []).append(cta)
    return [cta for turn in zip_longest(*members.values()) for cta in turn if cta is not None][:count]


def from_dram(sms: int, threads: int = 1024, access_bytes: int = ACCESS_BYTES, depth: int = DEPTH) -> Pattern:
    """`sms` CTAs read what is not in the L2, `depth` accesses of `access_bytes` per thread in flight."""
    row_bytes = threads * access_bytes
    table = TensorTable()
    data = buffer(table, "buffer", sms * depth * DRAM_BATCHES * row_bytes, row_bytes)
    return Pattern(
        f"DRAM to {sms} SMs", table.tensors, (_read("read", data, {cta: cta for cta in range(sms)}, threads, 1, depth),)
    )


def copy(mib: int, ctas: int, threads: int = 1024, access_bytes: int = ACCESS_BYTES, depth: int = DEPTH) -> Pattern:
    """Copy a quarter of a buffer, so that the L2 holds dirty data as in a run of copies, then all: compare the last."""
    row_bytes = threads * access_bytes
    table = TensorTable()
    source, target = (buffer(table, name, mib * MIB, row_bytes) for name in ("source", "target"))
    agents = copiers(groups_of(threads), depth)
    launches = tuple(
        _stride(name, (source, target), rows, ctas, threads, agents)
        for name, rows in (("copy before", source.rows // 4), ("copy", source.rows))
    )
    return Pattern(f"copy of {mib} MiB", table.tensors, launches)


def write(mib: int, ctas: int, threads: int = 1024) -> Pattern:
    """Write a quarter of a buffer, so that the L2 is full of dirty data, then all of it: compare the last."""
    table = TensorTable()
    data = buffer(table, "buffer", mib * MIB, threads * ACCESS_BYTES)
    agents = writers(groups_of(threads), DEPTH)
    launches = tuple(
        _stride(name, (data,), rows, ctas, threads, agents)
        for name, rows in (("write before", data.rows // 4), ("write", data.rows))
    )
    return Pattern(f"write of {mib} MiB", table.tensors, launches)


def blocks(ctas: int, threads: int, shared_bytes: int, scale: bool) -> Pattern:
    """A CTA for every `threads` elements of 8 bytes, which each thread reads, or reads and writes elsewhere (`scale`).

    `shared_bytes` per CTA bounds how many are resident.
    """
    table = TensorTable()
    rows = 8 * threads
    source, target = (buffer(table, name, ctas * rows, rows) for name in ("source", "target"))
    groups = groups_of(threads)

    def work(cta: int) -> tuple[WorkItem, ...]:
        return (WorkItem(tuple(t.view(0, 0).window(cta, 1) for t in ((source, target) if scale else (source,))), ()),)

    agents = copiers(groups, 1) if scale else readers(groups, 1, summing=False)
    launch = KernelLaunch("blocks", ctas, CtaResources(threads, 32, shared_bytes), work, agents)
    return Pattern(f"{ctas} CTAs of {threads} threads", table.tensors, (launch,))


def _read(
    name: str,
    data: Tensor,
    rank: Mapping[int, int],
    threads: int,
    passes: int,
    depth: int = DEPTH,
    grid: int = 0,
) -> KernelLaunch:
    """The n CTAs of `rank` (CTA → its number) read every n-th row; others of a `grid` do nothing."""
    ctas = len(rank)

    def work(cta: int) -> tuple[WorkItem, ...]:
        return (WorkItem((every(data, rank[cta], ctas),), ()),) * passes if cta in rank else ()

    return kernel(name, max(ctas, grid), threads, work, readers(groups_of(threads), depth))


def _stride(name: str, tensors: tuple[Tensor, ...], rows: int, ctas: int, threads: int, agents: Agents) -> KernelLaunch:
    def work(cta: int) -> tuple[WorkItem, ...]:
        return (WorkItem(tuple(every(tensor, cta, ctas, rows) for tensor in tensors), ()),)

    return kernel(name, ctas, threads, work, agents)
