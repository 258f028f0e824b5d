"""Which SMs share a read coalescer: chosen SMs copy the same tiles at the same time, pair by pair and in growing sets.

Runs itself under Nsight Compute, which must be on the PATH and allowed to read counters:

    python -m kernels_cupy.microbench.merge_groups -o merge_groups.csv

First each of a few SMs is paired with every other. Those that merge with the first of them are its set, of which then
growing parts read at once, later and later, with data in the L2 and not, by bulk copies and by cp.async.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.counters import count_launches
from kernels_cupy.errors import Unavailable
from kernels_cupy.microbench.merging import METRICS
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
FIRST = (2, 124, 0)
"""SMs that are paired with every other."""
MERGED = 1.2
"""SM bytes over L2 bytes of a pair from which on it merges; pairs that do not are within 1 % of 1."""
REGION_BYTES = 1 << 20
COLD_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: these SMs copy the same tiles, each `delay_cycles` after the one before.

    Attributes:
        bulk: by bulk copies of one thread (TMA), else by cp.async of `threads` threads.
        cold: the data is not in the L2.
    """

    name: str
    sms: tuple[int, ...]
    delay_cycles: int = 0
    bulk: int = 1
    cold: int = 0
    threads: int = 32
    tile_bytes: int = 16384
    tiles: int = 16
    period_cycles: int = 6000


def pairs(first: int, sm_count: int) -> list[Case]:
    """`first` with every other SM."""
    return [Case("pair", (first, sm), tiles=8) for sm in range(sm_count) if sm != first]


def sets(group: Sequence[int]) -> list[Case]:
    """Parts of a set whose first SM merges with every other, and its pairs, at growing delays."""
    own = tuple(group)
    found = [Case("first n", own[:n]) for n in (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18) if n <= len(own)]
    found += [Case("first n, cp.async", own[:n], bulk=0, threads=256) for n in (2, 4, 8, 16) if n <= len(own)]
    found += [Case("all, in turn", own, delay) for delay in (2, 5, 10, 20, 40)]
    for bulk, threads in ((1, 32), (0, 256)):
        for cold in (0, 1):
            delays = (0, 25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200)
            found += [Case("pair, later", own[:2], delay, bulk, cold, threads) for delay in delays]
            found += [Case("four, in turn", own[:4], delay, bulk, cold, threads) for delay in (0, 25, 50, 100, 200)]
    found += [Case("pair, later, small tile", own[:2], d, tile_bytes=2048) for d in (0, 25, 50, 100, 200)]
    return found


def launch_all(cases: Sequence[Case]) -> None:
    """Launch every case once, in order (this is what Nsight Compute watches)."""
    import cupy

    kernel = cupy.RawModule(code=SOURCE.read_text()).get_function("copy_together")
    kernel.max_dynamic_shared_size_bytes = 131072
    sm_count = cupy.cuda.Device().attributes["MultiProcessorCount"]
    data = cupy.random.randint(0, 255, COLD_BYTES, dtype=cupy.uint8)
    warm, cold = data[:REGION_BYTES], data[REGION_BYTES:]
    cupy.cuda.profiler.start()
    for number, case in enumerate(cases):
        rank = np.full(sm_count, -1, np.int32)
        rank[list(case.sms)] = np.arange(len(case.sms))
        region = cold[number * REGION_BYTES % (len(cold) - REGION_BYTES) :] if case.cold else warm
        arrived = cupy.zeros(1, cupy.uint32)
        numbers = (len(case.sms), case.delay_cycles, case.period_cycles, case.bulk)
        sizes = np.int32(case.tile_bytes), np.int32(case.tiles)
        arguments = (region, *sizes, cupy.asarray(rank), *(np.int32(n) for n in numbers), arrived)
        if not case.cold:
            warm.sum()
        kernel((sm_count,), (case.threads,), arguments, shared_mem=131072)
        cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.stop()


def measure(cases: Sequence[Case]) -> list[float]:
    """SM bytes over L2 bytes of each case, by running this module under Nsight Compute."""
    child = ["kernels_cupy.microbench.merge_groups", "--launch", json.dumps([asdict(case) for case in cases])]
    try:
        counted = count_launches("copy_together", METRICS, child)
    except Unavailable as error:
        sys.exit(f"merge_groups: {error}")
    return [row["sm_read_bytes"] / (32 * row["l2_read_sectors"]) for row in counted]


def main() -> None:
    """Measure the pairs, then the sets of those that merge, and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="merge_groups.csv")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all([Case(**{**entry, "sms": tuple(entry["sms"])}) for entry in json.loads(arguments.launch)])
        return
    import cupy

    count = cupy.cuda.Device().attributes["MultiProcessorCount"]
    cases: list[Case] = []
    ratios: list[float] = []
    for first in FIRST:
        own = pairs(first, count)
        measured = measure(own)
        partners = [case.sms[1] for case, ratio in zip(own, measured, strict=True) if ratio > MERGED]
        print(f"SM {first} merges with {partners}", flush=True)
        cases, ratios = cases + own, ratios + measured
        if first != FIRST[-1]:
            more = sets((first, *partners))
            cases, ratios = cases + more, ratios + measure(more)
    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE))
        table = csv.writer(file)
        table.writerow(["case", "sms", "delay_cycles", "bulk", "cold", "tile_bytes", "merged"])
        for case, ratio in zip(cases, ratios, strict=True):
            sms = " ".join(map(str, case.sms))
            table.writerow([case.name, sms, case.delay_cycles, case.bulk, case.cold, case.tile_bytes, round(ratio, 3)])
            if case.name != "pair":
                print(f"{case.name:24} {sms:60} {case.delay_cycles:5} {case.bulk} {case.cold} {ratio:.2f}")


if __name__ == "__main__":
    main()
