"""How many slices, clusters and channels the GPU counts, and its clocks, while a buffer streams from memory.

    python -m kernels_cupy.microbench.units -o units.csv

A unit's cycles summed over its instances, by those of one of them, are the instances. Runs itself under Nsight Compute,
which must be on the PATH and allowed to read counters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernels_cupy.counters import count_launches
from kernels_cupy.microbench.bench import MIB, Bench, write_table
from kernels_cupy.microbench.l2_counters import Child, counting_main
from kernels_cupy.microbench.streams import SOURCE
from kernels_cupy.provenance import provenance

UNITS = {"l2_slices": "lts", "gpcs": "gpc", "dram_channels": "dram", "sms": "sm"}
"""Quantity → unit in Nsight Compute."""
METRICS = {f"{unit}_{how}": f"{unit}__cycles_elapsed.{how}" for unit in UNITS.values() for how in ("sum", "max")}
CLOCKS = {f"{unit}_clock_hz": f"{unit}__cycles_elapsed.avg.per_second" for unit in UNITS.values()}
BUFFER_MIB = 1024
KERNELS = "regex:^read_passes$"


def launch_all() -> None:
    """A pass over 1 GiB, twice: what Nsight Compute watches."""
    bench = Bench(SOURCE)
    data = bench.cupy.ones(BUFFER_MIB * MIB // 4, np.uint32)
    kernel, rows = bench.kernel("read_passes"), np.int64(BUFFER_MIB * MIB // 16384)
    with bench.profiled():
        for _ in range(2):
            kernel((2 * bench.gpu.sm_count,), (1024,), (data, rows, np.int32(1), np.int32(0), bench.sink))


def main() -> None:
    """Count and write a CSV, provenance in its first lines."""

    def count(child: Child, path: Path) -> None:
        counted = count_launches(KERNELS, METRICS | CLOCKS, child)[-1]
        rows: list[tuple[str, str]] = [
            (name, f"{round(counted[f'{unit}_sum'] / counted[f'{unit}_max'])}") for name, unit in UNITS.items()
        ]
        rows += [(name, f"{counted[name]:.6g}") for name in CLOCKS]
        write_table(path, provenance(SOURCE, Path(__file__)), ("quantity", "value"), rows)
        for name, value in rows:
            print(f"{name:16} {value}")

    counting_main(__doc__, "units", "units.csv", launch_all, count)


if __name__ == "__main__":
    main()
