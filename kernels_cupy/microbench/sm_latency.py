"""How long an L2 hit takes from every SM: the mean over lines of the least that each took (SM cycles, some 10 of them
for the clock), and the standard deviation over lines.

    python -m kernels_cupy.microbench.sm_latency -o sm_latency.csv --gpcs gpcs.json

One SM reads at a time. `gpc` is as `kernels_cupy.microbench.gpcs` found it on the same card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.bench import Bench, write_table
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
LINE_BYTES = 128
LINES, PASSES = 4096, 6


def main() -> None:
    """Measure all SMs and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="sm_latency.csv", type=Path)
    parser.add_argument("--gpcs", default="gpcs.json", help="from kernels_cupy.microbench.gpcs")
    arguments = parser.parse_args()
    gpc_of_sm = json.loads(Path(arguments.gpcs).read_text())["gpc_of_sm"]
    bench = Bench(SOURCE)
    cupy, kernel = bench.cupy, bench.kernel("read_lines")
    data = cupy.zeros(LINES * LINE_BYTES, np.uint8)
    rows = []
    for sm, gpc in enumerate(gpc_of_sm):
        took = cupy.full(LINES, 1 << 20, np.uint32)
        numbers = (np.int32(LINES), np.int32(PASSES), np.int32(sm))
        kernel((bench.gpu.sm_count,), (32,), (data, *numbers, took))
        cycles = took.get()
        if cycles.max() < 1 << 20:
            rows.append((sm, gpc, round(float(cycles.mean()), 1), round(float(cycles.std()), 1)))
    write_table(arguments.output, provenance(SOURCE, Path(__file__)), ("sm", "gpc", "cycles", "deviation"), rows)
    print(f"{len(rows)} SMs in {arguments.output}")


if __name__ == "__main__":
    main()
