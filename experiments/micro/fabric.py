"""SMs of one L2 partition or of both read memory, write, or do both at once: what crosses between the partitions?

As measured: a CTA of 1024 threads on every SM, of which half read rows of 8 KiB, eight of them in flight, and half
write such rows; the reading SMs share the rows of one buffer, the writing SMs those of another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from experiments.micro.pattern import ACCESS_BYTES, MIB, Pattern, buffer, every, groups_of, kernel, readers, writers
from traces.launch import WorkItem
from traces.ops import Program
from traces.tensor import Matrix, Tensor, TensorTable, View

__all__ = ["read_and_write"]

THREADS = 1024
HALF = THREADS // 2
READS_IN_FLIGHT, WRITES_IN_FLIGHT = 8, 4


def read_and_write(
    reading: Collection[int], writing: Collection[int], read_mib: int, written_mib: int, cta_order: Sequence[int]
) -> Pattern:
    """The SMs `reading` read `read_mib` MiB, those `writing` write `written_mib` MiB; CTA n is on SM `cta_order[n]`."""
    table = TensorTable()
    row_bytes = HALF * ACCESS_BYTES
    data, results = (
        buffer(table, name, max(1, mib) * MIB, row_bytes)
        for name, mib in (("data", read_mib), ("results", written_mib))
    )
    sets = [sorted(sms) for sms in (reading, writing)]

    def share(tensor: Tensor, sms: Sequence[int], sm: int) -> View:
        return every(tensor, sms.index(sm) if sm in sms else tensor.rows, max(1, len(sms)))

    def work(cta: int) -> tuple[WorkItem, ...]:
        sm = cta_order[cta]
        return (WorkItem((share(data, sets[0], sm), share(results, sets[1], sm)), ()),)

    read = readers(groups_of(HALF), READS_IN_FLIGHT)
    write = writers(groups_of(HALF), WRITES_IN_FLIGHT)

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (*read(matrices[:1], parameters), *write(matrices[1:], parameters))

    launch = kernel("read_and_write", len(cta_order), THREADS, work, agents)
    return Pattern(launch.name, table.tensors, (launch,))
