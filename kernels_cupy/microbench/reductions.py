"""How fast the L2 adds fp32 numbers (red.global.add), sent by a few SMs or by all: in whole lines, 4 or 16 bytes a
thread, or in sectors of eight rows, 8 bytes a thread.

python -m kernels_cupy.microbench.reductions -o reductions.csv

Every CTA adds to pieces of 16 KiB, grid-stride, over and over; in each pass it takes other pieces than before.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
PIECES_PER_MIB = 64
THREADS = 512
CASES = [
    (kernel, mib, ctas)
    for kernel in ("add_words", "add_vectors", "add_fragments")
    for mib, ctas in ((4, 264), (16, 264), (512, 264), (4, 1), (4, 33))
]
"""(kernel, MiB that are added to, CTAs): sums that stay in the L2 and sums that do not, and a few SMs alone."""


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    import cupy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="reductions.csv")
    arguments = parser.parse_args()
    module = cupy.RawModule(code=SOURCE.read_text())
    sums = cupy.zeros(512 << 18, cupy.float32)

    def milliseconds(kernel: str, mib: int, ctas: int, passes: int) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        numbers = (np.int32(mib * PIECES_PER_MIB), np.int32(passes))
        start.record()
        module.get_function(kernel)((ctas,), (THREADS,), (sums, *numbers))
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))

    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE))
        table = csv.writer(file)
        table.writerow(["kernel", "mib", "ctas", "passes", "best_ms", "tb_per_s"])
        for kernel, mib, ctas in CASES:
            if kernel != "add_words" and int(cupy.cuda.Device().compute_capability) < 90:
                continue
            passes = max(1, (ctas << 4) // mib)
            best = min(milliseconds(kernel, mib, ctas, passes) for _ in range(5))
            rate = (mib << 20) * passes / best / 1e9
            table.writerow([kernel, mib, ctas, passes, round(best, 5), round(rate, 4)])
            print(f"{kernel:12} {mib:4} MiB by {ctas:3} CTAs: {rate:.3f} TB/s")


if __name__ == "__main__":
    main()
