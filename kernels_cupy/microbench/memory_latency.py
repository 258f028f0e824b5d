"""How long single reads of memory take: most as long as the way is, some as long as a refresh of their bank lasts.

    python -m kernels_cupy.microbench.memory_latency -o memory_latency.csv

One thread reads lines in random order, one after another, when other data has filled the L2. A row counts the `reads`
that took `cycles` or up to `BIN_CYCLES` more (SM cycles, some 20 of them for the clock). Longer ones than `MOST_CYCLES`
are in the last row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.bench import Bench, write_table
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
LINE_BYTES = 128
BUFFER_L2S = 32
READS = 20_000
LAUNCHES = 4
BIN_CYCLES, MOST_CYCLES = 25, 3000


def measure(bench: Bench) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Reads by latency, one number for every `BIN_CYCLES`."""
    cupy = bench.cupy
    buffer_bytes = BUFFER_L2S * bench.gpu.l2_bytes
    data, other = cupy.zeros(buffer_bytes, np.uint8), cupy.zeros(4 * bench.gpu.l2_bytes, np.uint8)
    order = np.random.default_rng(1)
    counts = np.zeros(MOST_CYCLES // BIN_CYCLES + 1, np.int64)
    for _ in range(LAUNCHES):
        lines = cupy.asarray(order.permutation(buffer_bytes // LINE_BYTES)[:READS].astype(np.uint32))
        took = cupy.zeros(READS, np.uint32)
        other += 1
        bench.kernel("read_lines")((1,), (1,), (data, lines, np.int32(READS), took))
        counts += np.bincount(np.minimum(took.get(), MOST_CYCLES) // BIN_CYCLES, minlength=len(counts))
    return counts


def main() -> None:
    """Measure and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="memory_latency.csv", type=Path)
    output = parser.parse_args().output
    counts = measure(Bench(SOURCE))
    rows = [(number * BIN_CYCLES, reads) for number, reads in enumerate(counts.tolist()) if reads]
    write_table(output, provenance(SOURCE, Path(__file__)), ("cycles", "reads"), rows)
    print(f"{counts.sum()} reads, {len(rows)} rows in {output}")


if __name__ == "__main__":
    main()
