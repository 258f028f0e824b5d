"""What becomes of written data: evict, write, read back near and far, evict again, for several sizes in one L2.

As measured: 132 CTAs, each with one contiguous piece of the buffer; it is read back by the CTA that wrote it, and then
by the CTA 67 further on. What the last step writes to DRAM was still dirty in the L2. Eviction reads other data;
measured with 512 MiB, here with as much as displaces every line (`EVICT_MIB`).
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.micro.pattern import ACCESS_BYTES, GROUP, MIB, Pattern, buffer, groups_of, kernel, readers, writers
from traces.launch import Agents, KernelLaunch, WorkItem
from traces.tensor import Tensor, TensorTable

__all__ = ["CTAS", "STEPS", "writeback"]

CTAS = 132
THREADS = 256
DEPTH = 4
OTHER = 67
EVICT_MIB = 192
STEPS = ("write", "read back same", "read back other", "evict")


def writeback(sizes_mib: Sequence[int], ctas: int = CTAS, evict_mib: int = EVICT_MIB) -> Pattern:
    """One eviction, then `STEPS` for each size in order."""
    table = TensorTable()
    row_bytes = THREADS * ACCESS_BYTES
    data = buffer(table, "buffer", max(sizes_mib) * MIB, row_bytes)
    other = buffer(table, "other", evict_mib * MIB, row_bytes)
    groups = groups_of(THREADS, GROUP)
    read, write = readers(groups, DEPTH), writers(groups, DEPTH)
    launches = [_pieces("evict", other, other.rows, 0, ctas, read)]
    for mib in sizes_mib:
        rows = mib * MIB // row_bytes
        launches += [
            _pieces(f"write {mib} MiB", data, rows, 0, ctas, write),
            _pieces(f"read back same {mib} MiB", data, rows, 0, ctas, read),
            _pieces(f"read back other {mib} MiB", data, rows, OTHER, ctas, read),
            _pieces(f"evict {mib} MiB", other, other.rows, 0, ctas, read),
        ]
    return Pattern("writeback", table.tensors, tuple(launches))


def _pieces(name: str, data: Tensor, rows: int, shift: int, ctas: int, agents: Agents) -> KernelLaunch:
    """CTA b works on the piece number (b + shift) mod ctas of `rows` rows."""

    def work(cta: int) -> tuple[WorkItem, ...]:
        piece = (cta + shift) % ctas
        first, last = piece * rows // ctas, (piece + 1) * rows // ctas
        return (WorkItem((data.view(0, 0).window(first, last - first),), ()),)

    return kernel(name, ctas, THREADS, work, agents)
