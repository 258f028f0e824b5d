"""Read bandwidth from the L2 by SMs, CTAs per SM and loads in flight, and the latency of a load meanwhile.

    python -m kernels_cupy.microbench.sm_bandwidth -o sm_bandwidth.csv --partitions partitions.json --gpcs gpcs.json

Which SMs read is chosen by number: one after another in CTA order, which fills GPC after GPC; the same number spread
over all GPCs; or those of one partition. Cycles are `clock64` of each CTA, between a grid-wide start and its end, so
neither the launch nor another CTA's delay is in them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
ACCESS_BYTES = 16
PIECE_BYTES = 64 << 10
CTA_BYTES = 2 << 20
CHASE_LINES = 1024
HOPS = 60
COLUMNS = ["set", "sms", "ctas_per_sm", "threads", "depth", "bytes_per_clk_mean", "bytes_per_clk_slowest"]
COLUMNS += ["latency_mean", "event_us", "sm_of_cta"]


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: `readers` CTAs of `threads` threads on each of `sms` read, `depth` loads per thread in flight."""

    name: str
    sms: tuple[int, ...]
    readers: int
    threads: int
    depth: int


def gpcs(order: list[int], partition_of_sm: list[int]) -> list[list[int]]:
    """SMs by GPC: in CTA order they follow each other, 16 or 18 to a GPC, and all of one partition."""
    runs: list[list[int]] = []
    for sm in order:
        # An SM number steps by 16 or 14 within a GPC; the next GPC starts over with a small one.
        if not runs or (sm < runs[-1][-1] and len(runs[-1]) >= 16):
            runs.append([])
        runs[-1].append(sm)
    if any(len({partition_of_sm[sm] for sm in run}) > 1 for run in runs):
        raise ValueError("the CTA order does not go from GPC to GPC on this card")
    return runs


def read_gpcs(path: Path, order: list[int]) -> list[list[int]]:
    """SMs by GPC, in CTA order, as `kernels_cupy.microbench.gpcs` found them."""
    gpc_of = json.loads(path.read_text())["gpc_of_sm"]
    return [[sm for sm in order if gpc_of[sm] == gpc] for gpc in dict.fromkeys(gpc_of[sm] for sm in order)]


def cases(order: list[int], partition_of_sm: list[int], groups: list[list[int]]) -> Iterator[Case]:
    """Growing sets of SMs with growing loads; one SM is left out of the largest sets, to chase.

    Args:
        order: SMs in CTA order.
        partition_of_sm: L2 partition of each SM.
        groups: SMs by GPC, over which "spread" goes in turns.
    """
    turns = [sm for i in range(max(map(len, groups))) for group in groups for sm in group[i : i + 1]]
    spread = [sm for sm in turns if sm != order[-1]]
    near = [sm for sm in order[:-1] if partition_of_sm[sm] == partition_of_sm[order[0]]]
    for readers, threads, depth in [(1, 1024, d) for d in (1, 2, 4)] + [(2, 1024, d) for d in (1, 2, 4)]:
        for n in sorted({1, 2, 4, 8, 16, len(order) // 4, len(order) // 2, 3 * len(order) // 4, len(order) - 1}):
            yield Case("in order", tuple(order[:n]), readers, threads, depth)
        for n in (8, 16, len(order) // 4, len(order) // 2):
            yield Case("spread", tuple(spread[:n]), readers, threads, depth)
        for n in (len(near) // 2, len(near)):
            yield Case("one partition", tuple(near[:n]), readers, threads, depth)
    for readers, threads, depth in ((4, 256, 4), (2, 256, 4), (1, 256, 4), (1, 256, 1), (1, 32, 1), (1, 32, 4)):
        for n in (1, 16, len(order) // 2, len(order) - 1):
            yield Case("in order", tuple(order[:n]), readers, threads, depth)


def run(case: Case, kernels: dict[int, Any], chaser: int, data: Any, following: Any) -> list[float]:
    """The measured columns of one case: the median of three launches by its slowest CTA."""
    import cupy

    count = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
    resident = max(case.readers, 2)
    rank = np.full(count, -1, np.int32)
    rank[list(case.sms)] = np.arange(len(case.sms))
    rank[chaser] = -2
    kernel = kernels[case.depth]
    shared = (200 << 10) // resident
    kernel.max_dynamic_shared_size_bytes = shared
    row_bytes = case.threads * ACCESS_BYTES
    rows = max(PIECE_BYTES // row_bytes, case.depth)
    passes = max(1, CTA_BYTES * case.threads // 1024 // (rows * row_bytes))
    grid = count * resident
    readers = len(case.sms) * case.readers
    found = []
    for _ in range(4):
        arrived, slots, sink = cupy.zeros(1, cupy.uint32), cupy.zeros(count, cupy.uint32), cupy.zeros(1, cupy.uint32)
        cycles = cupy.zeros(grid + 1, cupy.float32)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        numbers = (np.int32(rows), np.int32(passes), cupy.asarray(rank), np.int32(case.readers))
        cupy.cuda.Device().synchronize()
        begin.record()
        kernel(
            (grid,),
            (case.threads,),
            (data, *numbers, arrived, slots, following, np.int32(HOPS), cycles, sink),
            shared_mem=shared,
        )
        end.record()
        end.synchronize()
        took = cycles.get()
        moved = float(rows * row_bytes * passes)
        per_cta = took[:readers]
        found.append(
            [
                len(case.sms) * case.readers * moved / float(per_cta.mean()),
                len(case.sms) * case.readers * moved / float(per_cta.max()),
                float(took[grid]),
                1e3 * cupy.cuda.get_elapsed_time(begin, end),
            ]
        )
    return sorted(found[1:], key=lambda row: row[1])[1]


def launched(ctas: int, mib: int, passes: int, kernel: Any, data: Any) -> tuple[list[float], list[int]]:
    """The measured columns of a plain launch of `ctas` CTAs that share a buffer, and the SMs of its CTAs.

    The launch is in the time of the events, and not in the cycles; a buffer of 16 MiB is in the L2, 256 MiB are not.
    """
    import cupy

    rows = (mib << 20) // (1024 * ACCESS_BYTES)
    found = []
    for _ in range(4):
        sms, cycles, sink = cupy.zeros(ctas, cupy.uint32), cupy.zeros(ctas, cupy.float32), cupy.zeros(1, cupy.uint32)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        kernel((ctas,), (1024,), (data, np.int32(rows), np.int32(passes), sms, cycles, sink))
        end.record()
        end.synchronize()
        moved, took = float(passes * (mib << 20)), cycles.get()
        us = 1e3 * cupy.cuda.get_elapsed_time(begin, end)
        found.append(([moved / float(took.mean()), moved / float(took.max()), float("nan"), us], sms.get().tolist()))
    return sorted(found[1:], key=lambda row: row[0][1])[1]


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    import cupy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="sm_bandwidth.csv")
    parser.add_argument("--partitions", default="partitions.json", help="from kernels_cupy.microbench.partitions")
    parser.add_argument("--gpcs", help="from kernels_cupy.microbench.gpcs (default: by the CTA order)")
    parser.add_argument("--starts", default="cta_starts.json", help="from kernels_cupy.microbench.cta_starts")
    arguments = parser.parse_args()
    partition_of_sm = json.loads(Path(arguments.partitions).read_text())["partition_of_sm"]
    order = json.loads(Path(arguments.starts).read_text())["one_small_cta_per_sm"]["last_run"]["sm"]
    groups = read_gpcs(Path(arguments.gpcs), order) if arguments.gpcs else gpcs(order, partition_of_sm)
    text = SOURCE.read_text()
    kernels = {d: cupy.RawModule(code=text, options=(f"-DDEPTH={d}",)).get_function("stream") for d in (1, 2, 4)}
    data = cupy.zeros(64 << 18, cupy.uint32)
    lines = np.random.default_rng(1).permutation(CHASE_LINES)
    following = np.zeros(CHASE_LINES * 32, np.uint32)
    following[lines * 32] = np.roll(lines, -1) * 32  # words from the start of the buffer
    following = cupy.asarray(following)
    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE, Path(__file__)))
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for case in cases(order, partition_of_sm, groups):
            values = run(case, kernels, order[-1], data, following)
            row = [case.name, len(case.sms), case.readers, case.threads, case.depth, *(f"{v:.4g}" for v in values)]
            table.writerow([*row, ""])
            print(*row, flush=True)
        plain = cupy.RawModule(code=text, options=("-DDEPTH=4",)).get_function("launched")
        large = cupy.zeros(64 << 20, cupy.uint32)
        for mib, passes in ((16, 8), (16, 32), (256, 1)):
            sms = len(order)
            for ctas in (1, 2, 4, 8, 16, sms // 4, sms // 2, 3 * sms // 4, sms, 2 * sms):
                values, used = launched(ctas, mib, passes, plain, large)
                name = f"launched {mib} MiB x {passes}"
                row = [name, len(set(used)), 1 + ctas // (2 * sms), 1024, 4, *(f"{v:.4g}" for v in values)]
                table.writerow([*row, " ".join(map(str, used)) if mib == 256 else ""])
                print(*row, flush=True)


if __name__ == "__main__":
    main()
