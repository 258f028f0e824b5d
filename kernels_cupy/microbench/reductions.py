"""How fast the L2 adds fp32 numbers, by the way they are sent and by how many SMs send them.

    python -m kernels_cupy.microbench.reductions -o reductions.csv

Under Nsight Compute (`ncu --metrics …`), `--once` launches each kernel once, to see under which counters it falls.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
KERNELS = ("add_words", "add_vectors", "add_bulk")
PIECE_BYTES = 16384
THREADS = 512


def cases(sms: int) -> list[tuple[str, int, int]]:
    """(kernel, MiB that are added to, CTAs): sums that stay in the L2 and sums that do not, and a few SMs alone."""
    found = [(kernel, mib, 2 * sms) for kernel in KERNELS for mib in (4, 16, 512)]
    return found + [(kernel, 4, ctas) for kernel in KERNELS for ctas in (1, 8, 33)]


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    import cupy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="reductions.csv")
    parser.add_argument(
        "--once", action="store_true", help="launch each kernel once on 4 and 512 MiB, and measure nothing"
    )
    arguments = parser.parse_args()
    module = cupy.RawModule(code=SOURCE.read_text())
    sums = cupy.zeros(512 << 18, cupy.float32)

    def launch(kernel: str, mib: int, ctas: int, passes: int) -> float:
        """Milliseconds of one launch."""
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        pieces = (mib << 20) // PIECE_BYTES
        module.get_function(kernel)((ctas,), (THREADS,), (sums, np.int32(pieces), np.int32(passes)))
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))

    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    if arguments.once:
        for kernel in KERNELS:
            for mib in (4, 4, 512):
                launch(kernel, mib, 2 * sms, 1)
        return
    with open(arguments.output, "w", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in provenance(SOURCE).items())
        table = csv.writer(file)
        table.writerow(["kernel", "mib", "ctas", "passes", "best_ms", "tb_per_s"])
        for kernel, mib, ctas in cases(sms):
            passes = max(1, (ctas << 4) // mib)
            best = min(launch(kernel, mib, ctas, passes) for _ in range(5))
            rate = (mib << 20) * passes / best / 1e9
            table.writerow([kernel, mib, ctas, passes, round(best, 5), round(rate, 4)])
            print(f"{kernel:12} {mib:4} MiB by {ctas:3} CTAs: {rate:.3f} TB/s")


if __name__ == "__main__":
    main()
