"""Which SMs' reads of the same line become one L2 request, and how close in time they must be.

Runs itself under Nsight Compute, which must be on the PATH and allowed to read counters:

    python -m kernels_cupy.microbench.merging -o merging.csv --partitions partitions.json
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.counters import count_launches
from kernels_cupy.errors import Unavailable
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
METRICS = {
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
}
TILES = 32


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: these SMs, `delay_cycles` apart, copying tiles of `tile_bytes` every `period_cycles`."""

    name: str
    sms: tuple[int, ...]
    delay_cycles: int = 0
    tile_bytes: int = 16384
    period_cycles: int = 8000


def cases(partition_of_sm: list[int]) -> list[Case]:
    """Pairs of SMs near and far, growing sets within one partition, and growing delays."""
    own = tuple(sm for sm, partition in enumerate(partition_of_sm) if partition == partition_of_sm[0])
    pairs = {"same TPC": (0, 1), "same GPC, other TPC": (0, 2), "same GPC, other partition": (0, 4)}
    pairs |= {"next GPC, same TPC number": (0, 16), "next GPC, other TPC number": (0, 18)}
    found = [Case(name, sms, delay) for name, sms in pairs.items() for delay in (0, 25, 50, 100, 150, 300)]
    found += [Case(f"first {n} of a partition", own[:n]) for n in (2, 3, 4, 6, 8, 12, 16, 33, len(own))]
    found += [Case("whole partition, staggered", own, delay) for delay in (10, 20, 50, 100, 200)]
    found += [Case("first 16, tile size", own[:16], 0, size) for size in (2048, 8192, 65536)]
    return found


def launch_all(partition_of_sm: list[int]) -> None:
    """Launch every case once, in order (this is what Nsight Compute watches)."""
    import cupy

    kernel = cupy.RawModule(code=SOURCE.read_text()).get_function("copy_together")
    kernel.max_dynamic_shared_size_bytes = 131072
    data = cupy.random.randint(0, 255, 8 << 20, dtype=cupy.uint8)
    cupy.cuda.profiler.start()
    for case in cases(partition_of_sm):
        rank = np.full(len(partition_of_sm), -1, np.int32)
        rank[list(case.sms)] = np.arange(len(case.sms))
        arrived = cupy.zeros(1, cupy.uint32)
        numbers = (np.int32(n) for n in (len(case.sms), case.delay_cycles, case.period_cycles))
        arguments = (data, np.int32(case.tile_bytes), np.int32(TILES), cupy.asarray(rank), *numbers, arrived)
        kernel((len(partition_of_sm),), (32,), arguments, shared_mem=131072)
        cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.stop()


def measure(partitions: str) -> list[dict[str, float]]:
    """Counters of every case, by running this module under Nsight Compute."""
    child = ["kernels_cupy.microbench.merging", "--launch", "--partitions", partitions]
    try:
        return count_launches("copy_together", METRICS, child)
    except Unavailable as error:
        sys.exit(f"merging: {error}")


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="merging.csv")
    parser.add_argument("--partitions", default="partitions.json", help="from kernels_cupy.microbench.partitions")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    partition_of_sm = json.loads(Path(arguments.partitions).read_text())["partition_of_sm"]
    if arguments.launch:
        launch_all(partition_of_sm)
        return
    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE))
        table = csv.writer(file)
        table.writerow(
            ["case", "sms", "delay_cycles", "tile_bytes", "tiles", "sm_read_bytes", "l2_read_bytes", "merged"]
        )
        for case, row in zip(cases(partition_of_sm), measure(arguments.partitions), strict=True):
            l2_bytes = 32 * row["l2_read_sectors"]
            ratio = row["sm_read_bytes"] / l2_bytes
            numbers = [
                len(case.sms),
                case.delay_cycles,
                case.tile_bytes,
                TILES,
                int(row["sm_read_bytes"]),
                int(l2_bytes),
            ]
            table.writerow([case.name, *numbers, round(ratio, 3)])
            print(f"{case.name:30} {len(case.sms):3} SMs, {case.delay_cycles:4} cycles apart: merged {ratio:.2f}")


if __name__ == "__main__":
    main()
