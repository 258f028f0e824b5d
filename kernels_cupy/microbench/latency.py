"""Latency of one thread's loads, SM cycles: shared memory, L1, and L2 and memory by working set, lines in random order.

python -m kernels_cupy.microbench.latency -o latency.csv

`latency`: after all SMs together have read the buffer twice. `latency_flushed`: after they have read other data.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.microbench.bench import MIB, Bench, write_curves
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
LINE_BYTES = 128
MOST_HOPS = 65536
ROUNDS = 16
"""Times that a chase goes round a buffer of few lines."""
L2_SHARES = (0.134, 0.267, 0.4, 0.467, 0.534, 0.667, 0.8, 0.934, 1.067, 1.6)
"""Working sets as shares of the L2, beside 64 KiB, 1 MiB and 256 MiB."""
FLUSHED_MIB = 64


def working_sets_mib(l2_bytes: int) -> list[float]:
    """Sizes of the buffer, MiB, smallest first."""
    shares = (max(1, round(share * l2_bytes / MIB)) for share in L2_SHARES)
    return sorted({0.0625, 1.0, 256.0, *map(float, shares)})


class Chase:
    """A buffer whose lines point to each other in random order."""

    def __init__(self, bench: Bench, size_bytes: int) -> None:
        lines = size_bytes // LINE_BYTES
        order = np.random.default_rng(1).permutation(lines)
        self._data = bench.cupy.zeros(size_bytes // 8, np.uint64)
        words = np.zeros(size_bytes // 8, np.uint64)
        base, per_line = self._data.data.ptr, LINE_BYTES // 8
        words[order * per_line] = base + np.roll(order, -1).astype(np.uint64) * LINE_BYTES
        self._data.set(words)
        self.start = np.uint64(base + int(order[0]) * LINE_BYTES)
        self.lines = lines
        self._bench = bench

    def touch(self) -> None:
        """All SMs read the buffer twice."""
        kernel, vectors = self._bench.kernel("touch"), np.int64(self._data.nbytes // 16)
        kernel((2 * self._bench.gpu.sm_count,), (1024,), (self._data, vectors, np.int32(2), self._bench.sink))

    def follow(self, entry: str) -> float:
        """Cycles per load of one thread."""
        hops = min(ROUNDS * self.lines, MOST_HOPS)
        cycles = self._bench.cupy.zeros(1, np.float32)
        self._bench.kernel(entry)((1,), (1,), (self.start, np.int32(hops), cycles, self._bench.sink))
        return float(cycles.get()[0])


def measure(bench: Bench) -> Iterator[tuple[str, float, str, float, str]]:
    """Points of all curves."""

    def point(curve: str, mib: float, cycles: float) -> tuple[str, float, str, float, str]:
        print(f"{curve:16} {mib:9g} MiB {cycles:7.1f} cycles", flush=True)
        return curve, mib, "MiB", cycles, "cycles"

    cycles = bench.cupy.zeros(1, np.float32)
    bench.kernel("chase_shared")((1,), (1,), (np.int32(4096), cycles, bench.sink))
    yield point("latency_shared", 64 * 4 / MIB, float(cycles.get()[0]))
    small = Chase(bench, 16 << 10)
    yield point("latency_l1", 16 / 1024, small.follow("chase_l1"))
    other: Any = Chase(bench, max(256 * MIB, 4 * bench.gpu.l2_bytes))
    for mib in working_sets_mib(bench.gpu.l2_bytes):
        chase = Chase(bench, int(mib * MIB))
        chase.touch()
        yield point("latency", mib, chase.follow("chase_l2"))
    chase = Chase(bench, FLUSHED_MIB * MIB)
    other.touch()
    yield point("latency_flushed", FLUSHED_MIB, chase.follow("chase_l2"))


def main() -> None:
    """Measure all curves and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="latency.csv")
    arguments = parser.parse_args()
    bench = Bench(SOURCE)
    bench.sm_clock_ghz()
    facts = provenance(SOURCE, Path(__file__)) | {"sm_clock_ghz": f"{bench.sm_clock_ghz():.4f}"}
    write_curves(Path(arguments.output), facts, list(measure(bench)))


if __name__ == "__main__":
    main()
