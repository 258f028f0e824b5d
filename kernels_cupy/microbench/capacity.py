"""Counters of reads and writes of one buffer, size after size: where does data stop fitting in the L2?

    python -m kernels_cupy.microbench.capacity -o l2_capacity_reads.csv

The launches of each size follow each other: 2 passes (`read_fixed_warm2`), then 8 (`read_fixed`), each byte always read
by the same CTA; the same with readers that move from pass to pass (`read_shifted`); the buffer written once, and once
more by 8 small CTAs per SM. Then every CTA reads everything, twice (`read_all_first`, `read_all`). Runs itself under
Nsight Compute, which must be on the PATH and allowed to read counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernels_cupy.gpu import current_gpu
from kernels_cupy.microbench.bench import MIB, Bench
from kernels_cupy.microbench.l2_counters import Child, counting_main, write_counted
from kernels_cupy.microbench.streams import SHIFT, SOURCE
from kernels_cupy.provenance import provenance

L2_SHARES = (0.134, 0.267, 0.4, 0.467, 0.534, 0.667, 0.8, 0.867, 0.934, 1.0, 1.067, 1.334, 1.6, 2.134)
READ_ALL_SHARES = (0.134, 0.267, 0.534, 0.8)
READS = (("read_fixed_warm2", 2, 0), ("read_fixed", 8, 0), ("read_shifted_warm2", 2, SHIFT), ("read_shifted", 8, SHIFT))
"""(name, passes, shift) of the reads of a size, in order."""
KERNELS = "regex:^(read_passes|read_all|write_rows)$"
READ_THREADS, WRITE_THREADS = 1024, 256


def sizes_mib(l2_bytes: int, shares: tuple[float, ...]) -> list[int]:
    """Buffer sizes in MiB, smallest first."""
    return sorted({max(1, round(share * l2_bytes / MIB)) for share in shares})


def launches(l2_bytes: int) -> Iterator[tuple[str, int]]:
    """(name, MiB) of every launch, in order."""
    for mib in sizes_mib(l2_bytes, L2_SHARES):
        yield from ((name, mib) for name in (*(name for name, _, _ in READS), "write_first", "write_again"))
    for mib in sizes_mib(l2_bytes, READ_ALL_SHARES):
        yield from (("read_all_first", mib), ("read_all", mib))


def launch_all() -> None:
    """What Nsight Compute watches."""
    bench = Bench(SOURCE)
    largest = max(mib for _, mib in launches(bench.gpu.l2_bytes))
    data = bench.cupy.ones(largest * MIB // 4, np.uint32)
    read, write, read_all = (bench.kernel(name) for name in ("read_passes", "write_rows", "read_all"))
    ctas = 2 * bench.gpu.sm_count
    reads = {name: (np.int32(passes), np.int32(shift)) for name, passes, shift in READS}
    with bench.profiled():
        for name, mib in launches(bench.gpu.l2_bytes):
            rows = np.int64(mib * MIB // (READ_THREADS * 16))
            if name in reads:
                read((ctas,), (READ_THREADS,), (data, rows, *reads[name], bench.sink))
            elif name.startswith("read_all"):
                read_all((ctas,), (READ_THREADS,), (data, rows, bench.sink))
            else:
                write_row = np.int64(mib * MIB // (WRITE_THREADS * 16))
                write((4 * ctas,), (WRITE_THREADS,), (data, write_row, np.uint32(7)))


def main() -> None:
    """Count all launches and write a CSV, provenance in its first lines."""

    def count(child: Child, path: Path) -> None:
        names = list(launches(current_gpu().l2_bytes))
        write_counted(path, provenance(SOURCE, Path(__file__)), ("pattern", "mib"), KERNELS, child, names)

    counting_main(__doc__, "capacity", "l2_capacity_reads.csv", launch_all, count)


if __name__ == "__main__":
    main()
