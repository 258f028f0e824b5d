"""How fast SMs send to the L2: stores of lines, additions to lines and to sectors, bulk copies and additions (TMA), by
SMs that share a CPC or a GPC.

    python -m kernels_cupy.microbench.sm_writes -o sm_writes.csv --starts cta_starts.json --gpcs gpcs.json

The TPCs of a GPC form three CPCs (compute processing clusters): the 1st, 4th, 7th by number, the 2nd, 5th, 8th, and the
3rd, 6th, 9th. Where a GPC has 16 SMs the last of them has four, the others six, and what they share is seen in how the
SMs of the small one fare beside the others.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.microbench.sm_bandwidth import gpcs, read_gpcs
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
PIECE_BYTES = 64 << 10
PASSES = 32
SHARED_BYTES = 150 << 10
"""So that an SM has one CTA."""
CPCS = 3
"""Of a GPC."""
KINDS = {"write lines": 0, "add to lines": 1, "add to sectors": 2, "bulk write": 3, "bulk add": 4}
COLUMNS = [
    "what",
    "set",
    "sms",
    "bytes_per_clk_of_all",
    "of_an_sm",
    "of_an_sm_in_a_large_cpc",
    "of_an_sm_in_a_small_cpc",
]


def cpcs(gpc: Sequence[int]) -> list[list[int]]:
    """The SMs of a GPC by CPC."""
    tpcs = sorted({sm // 2 for sm in gpc})
    return [[sm for sm in sorted(gpc) if sm // 2 in tpcs[first::CPCS]] for first in range(CPCS)]


def sets(groups: Sequence[Sequence[int]]) -> Iterator[tuple[str, list[int]]]:
    """SMs that send together, of a GPC with a small CPC and of all."""
    gpc = next((g for g in groups if len({len(c) for c in cpcs(g)}) > 1), groups[0])
    first, second, third = cpcs(gpc)
    yield "one SM", first[:1]
    yield "a TPC", first[:2]
    yield "two TPCs of a CPC", first[:4]
    yield "two TPCs of two CPCs", [*first[:2], *second[:2]]
    yield "a large CPC", first
    yield "a small CPC", third
    yield "two large CPCs", [*first, *second]
    yield "a GPC", list(gpc)
    yield "a TPC of every CPC", [sm for g in groups for c in cpcs(g) for sm in c[:2]]
    yield "a CPC of every GPC", [sm for g in groups for sm in cpcs(g)[0]]
    yield "all", [sm for g in groups for sm in g]


def main() -> None:
    """Measure all sets and write a CSV, provenance in its first lines."""
    import cupy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="sm_writes.csv")
    parser.add_argument("--partitions", default="partitions.json", help="from kernels_cupy.microbench.partitions")
    parser.add_argument("--gpcs", help="from kernels_cupy.microbench.gpcs (default: by the CTA order)")
    parser.add_argument("--starts", default="cta_starts.json", help="from kernels_cupy.microbench.cta_starts")
    arguments = parser.parse_args()
    order = json.loads(Path(arguments.starts).read_text())["one_small_cta_per_sm"]["last_run"]["sm"]
    partition_of_sm = json.loads(Path(arguments.partitions).read_text())["partition_of_sm"]
    groups = read_gpcs(Path(arguments.gpcs), order) if arguments.gpcs else gpcs(order, partition_of_sm)
    small = {sm for g in groups for c in cpcs(g) for sm in c if len(c) < max(map(len, cpcs(g)))}
    data = cupy.zeros(len(order) * PIECE_BYTES // 4, cupy.float32)

    def rates(kernel: Any, chosen: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Bytes per cycle of each of the chosen SMs, median of five launches."""
        rank = np.full(len(order), -1, np.int32)
        rank[list(chosen)] = np.arange(len(chosen))
        found = []
        for _ in range(6):
            arrived, cycles = cupy.zeros(1, cupy.uint32), cupy.zeros(len(chosen), cupy.float32)
            arguments = (data, np.int32(PASSES), cupy.asarray(rank), arrived, cycles)
            kernel((len(order),), (1024,), arguments, shared_mem=SHARED_BYTES)
            found.append(PASSES * PIECE_BYTES / cycles.get().astype(np.float64))
        return np.median(np.array(found[1:]), axis=0)

    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE, Path(__file__)))
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for name, kind in KINDS.items():
            if kind > 1 and int(cupy.cuda.Device().compute_capability) < 90:
                continue
            kernel = cupy.RawModule(code=SOURCE.read_text(), options=(f"-DKIND={kind}",)).get_function("send")
            kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
            for what, chosen in sets(groups):
                per_sm = rates(kernel, chosen)
                parts = [per_sm[[sm not in small for sm in chosen]], per_sm[[sm in small for sm in chosen]]]
                means = [f"{part.mean():.4g}" if len(part) else "" for part in (per_sm, *parts)]
                slowest = len(chosen) * per_sm.min()
                row = [name, what, len(chosen), f"{slowest:.5g}", *means]
                table.writerow(row)
                print(*row, sep=", ", flush=True)


if __name__ == "__main__":
    main()
