"""Counters of kernels that do next to nothing, by CTAs and threads: what a launch and each of its CTAs costs.

    python -m kernels_cupy.microbench.launch_counters -o launch_counters.csv

`empty` does nothing; `busy` keeps every CTA for 2000 cycles. Runs itself under Nsight Compute, which must be on the
PATH and allowed to read counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernels_cupy.gpu import current_gpu
from kernels_cupy.microbench.bench import Bench
from kernels_cupy.microbench.l2_counters import Child, counting_main, write_counted
from kernels_cupy.microbench.launch import SOURCE
from kernels_cupy.provenance import provenance

CTAS_PER_SM = (0, 1, 2, 8, 32, 128, 512)
"""CTAs of a launch for each SM of the GPU; 0: one CTA."""
THREADS = (128, 1024)
BUSY_CYCLES = 2000
REPEATS = 3
KERNELS = "regex:^(empty|busy)$"


def launches(sm_count: int) -> Iterator[tuple[str, int, int]]:
    """(kernel, CTAs, threads) of every launch, in order."""
    for name in ("empty", "busy"):
        for threads in THREADS:
            for per_sm in CTAS_PER_SM:
                yield from [(name, max(1, per_sm * sm_count), threads)] * REPEATS


def launch_all() -> None:
    """What Nsight Compute watches."""
    bench = Bench(SOURCE)
    empty, busy = bench.kernel("empty"), bench.kernel("busy")
    took = bench.cupy.zeros(max(CTAS_PER_SM) * bench.gpu.sm_count, np.int64)
    with bench.profiled():
        for name, ctas, threads in launches(bench.gpu.sm_count):
            if name == "empty":
                empty((ctas,), (threads,), ())
            else:
                busy((ctas,), (threads,), (np.int32(BUSY_CYCLES), took))


def main() -> None:
    """Count all launches and write a CSV, provenance in its first lines."""

    def count(child: Child, path: Path) -> None:
        names = list(launches(current_gpu().sm_count))
        write_counted(path, provenance(SOURCE, Path(__file__)), ("kernel", "ctas", "threads"), KERNELS, child, names)

    counting_main(__doc__, "launch_counters", "launch_counters.csv", launch_all, count)


if __name__ == "__main__":
    main()
