"""What crosses between the L2 partitions: SMs of one partition or of both read memory, write, or do both at once.

    python -m kernels_cupy.microbench.fabric -o fabric.csv --partitions partitions.json

Half of what an SM reads or writes has its home in the other partition, and crosses: what is read by SMs of partition 0
goes the same way as what is written by those of partition 1. `read_us` and `write_us` are from the first CTA's start to
the last reader's and the last writer's end, medians of fifteen launches, each after other data has been read.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.microbench.bench import MIB, Bench, write_table
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
ROW_BYTES = 8 << 10
READ_MIB, WRITTEN_MIB = 16, 8
"""So little that both fit one partition's half of the L2, and nothing that was written goes to memory."""
LAUNCHES = 15
CASES = [
    ("one", ""),
    ("", "one"),
    ("one", "one"),
    ("one", "other"),
    ("both", ""),
    ("", "both"),
    ("both", "both"),
]
"""Whose SMs read, and whose write: those of partition 0 (`one`), of partition 1 (`other`), `both`, or none."""


class FabricBench:
    """Buffers, and the SMs of each partition."""

    def __init__(self, bench: Bench, partition_of_sm: list[int]) -> None:
        cupy, self.bench = bench.cupy, bench
        self.kernel = bench.kernel("read_and_write")
        self.data = cupy.ones(READ_MIB * MIB // 4, np.uint32)
        self.results = cupy.zeros(WRITTEN_MIB * MIB // 4, np.uint32)
        self.other = cupy.ones(8 * bench.gpu.l2_bytes // 4, np.uint32)
        of_sm = np.array(partition_of_sm)
        self.sms = {"": [], "one": np.flatnonzero(of_sm == 0).tolist(), "other": np.flatnonzero(of_sm == 1).tolist()}
        self.sms["both"] = list(range(len(of_sm)))

    def times_us(self, reading: str, writing: str) -> tuple[float, float]:
        """µs until the last reader and the last writer are done; 0 where there are none."""
        cupy, count = self.bench.cupy, len(self.sms["both"])
        ranks = []
        for who in (reading, writing):
            rank = np.full(count, -1, np.int32)
            rank[self.sms[who]] = np.arange(len(self.sms[who]))
            ranks.append(cupy.asarray(rank))
        sizes = [len(self.sms[who]) for who in (reading, writing)]
        rows = [n * MIB // ROW_BYTES if size else 0 for n, size in zip((READ_MIB, WRITTEN_MIB), sizes, strict=True)]
        numbers = [np.int32(max(1, n)) for n in sizes] + [np.int32(n) for n in rows]
        found: list[list[float]] = []
        for _ in range(LAUNCHES):
            times = cupy.zeros((count, 2, 2), np.uint64)
            self.other.sum()
            cupy.cuda.Device().synchronize()
            arguments: tuple[Any, ...] = (self.data, self.results, *ranks, *numbers, times, self.bench.sink)
            self.kernel((count,), (1024,), arguments)
            ns = times.get().astype(np.int64)
            ends = [ns[self.sms[who], half, 1] for half, who in enumerate((reading, writing))]
            found.append([float(end.max() - ns[:, :, 0].min()) / 1e3 if len(end) else 0.0 for end in ends])
        read_us, write_us = np.median(np.array(found), axis=0).tolist()
        return read_us, write_us


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="fabric.csv", type=Path)
    parser.add_argument("--partitions", default="partitions.json", help="from kernels_cupy.microbench.partitions")
    arguments = parser.parse_args()
    bench = FabricBench(Bench(SOURCE), json.loads(Path(arguments.partitions).read_text())["partition_of_sm"])
    columns = ("readers", "writers", "read_mib", "written_mib", "read_us", "write_us")
    rows = []
    for reading, writing in CASES:
        sizes = READ_MIB if reading else 0, WRITTEN_MIB if writing else 0
        rows.append((reading, writing, *sizes, *bench.times_us(reading, writing)))
        print(*rows[-1], sep=", ", flush=True)
    write_table(arguments.output, provenance(SOURCE, Path(__file__)), columns, rows)


if __name__ == "__main__":
    main()
