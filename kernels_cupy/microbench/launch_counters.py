"""Counters of kernels that do next to nothing, by CTAs and threads: what a launch and each of its CTAs costs.

    python -m kernels_cupy.microbench.launch_counters -o launch_counters.csv

`empty` does nothing; `busy` keeps every CTA for 2000 cycles. Runs itself under Nsight Compute, which must be on the
PATH and allowed to read counters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernels_cupy.errors import Unavailable
from kernels_cupy.gpu import current_gpu
from kernels_cupy.microbench.bench import Bench, write_table
from kernels_cupy.microbench.l2_counters import METRICS, counted_rows
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
    bench.synchronize()
    bench.cupy.cuda.profiler.start()
    for name, ctas, threads in launches(bench.gpu.sm_count):
        if name == "empty":
            empty((ctas,), (threads,), ())
        else:
            busy((ctas,), (threads,), (np.int32(BUSY_CYCLES), took))
    bench.synchronize()
    bench.cupy.cuda.profiler.stop()


def main() -> None:
    """Count all launches and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="launch_counters.csv")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all()
        return
    try:
        child = ["kernels_cupy.microbench.launch_counters", "--launch"]
        rows = list(counted_rows(KERNELS, child, list(launches(current_gpu().sm_count))))
    except Unavailable as error:
        sys.exit(f"launch_counters: {error}")
    facts = provenance(SOURCE, Path(__file__))
    write_table(Path(arguments.output), facts, ("kernel", "ctas", "threads", *METRICS), rows)
    print(f"{len(rows)} launches")


if __name__ == "__main__":
    main()
