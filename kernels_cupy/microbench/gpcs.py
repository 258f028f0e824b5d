"""Which SMs share a port to the L2 (a GPC): those that slow each other down when they stream from it.

    python -m kernels_cupy.microbench.gpcs -o gpcs.json --starts cta_starts.json

CTAs are handed to one GPC after another, so stretches of the CTA order are most of a GPC each. Every TPC (two SMs)
streams together with every such stretch: where it gets clearly less than alone, it is of that GPC. TPCs that are slowed
down by no stretch are tried with each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.sm_bandwidth import ACCESS_BYTES, CHASE_LINES, PIECE_BYTES, SOURCE
from kernels_cupy.provenance import provenance

THREADS, READERS, DEPTH, PASSES = 1024, 2, 4, 32
LEAST_STRETCH = 12
"""SMs that must follow each other to be taken for a GPC's."""
SLOWED = 0.8
"""A TPC is of the GPC where it gets less than this share of its rate alone."""

Rate = Callable[[Sequence[int], Sequence[int]], float]
"""(SMs whose rate is asked for, SMs that stream beside them) → bytes per cycle of one of the former."""


def stretches(order: Sequence[int]) -> list[list[int]]:
    """Runs of the CTA order in which the SM number rises."""
    runs: list[list[int]] = []
    for sm in order:
        if not runs or sm < runs[-1][-1]:
            runs.append([])
        runs[-1].append(sm)
    return runs


def group(order: Sequence[int], rate: Rate) -> dict[int, int]:
    """GPC of each SM, numbered by the first SM of the CTA order; -1 where it shares a port with nobody."""
    seeds = [run for run in stretches(order) if len(run) >= LEAST_STRETCH]
    tpcs = [tuple(sm for sm in order if sm // 2 == tpc) for tpc in dict.fromkeys(sm // 2 for sm in order)]
    members: list[list[int]] = [[] for _ in seeds]
    left: list[int] = []
    for tpc in tpcs:
        alone = rate(tpc, ())
        shares = [rate(tpc, [sm for sm in seed if sm not in tpc]) / alone for seed in seeds]
        if shares and min(shares) < SLOWED:
            members[int(np.argmin(shares))] += tpc
        else:
            left += tpc
    lone: list[int] = []
    if left:
        slowed = [sm for sm in left if rate((sm,), [s for s in left if s != sm]) < SLOWED * rate((sm,), ())]
        members.append(slowed)
        lone = [sm for sm in left if sm not in slowed]
    place = {sm: at for at, sm in enumerate(order)}
    named = sorted((group for group in members if group), key=lambda group: min(place[sm] for sm in group))
    return {sm: number for number, group in enumerate(named) for sm in group} | dict.fromkeys(lone, -1)


def measured_rate() -> Rate:
    """Rates on the GPU at hand, median of three launches."""
    import cupy

    sms = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
    kernel = cupy.RawModule(code=SOURCE.read_text(), options=(f"-DDEPTH={DEPTH}",)).get_function("stream")
    shared = (200 << 10) // READERS
    kernel.max_dynamic_shared_size_bytes = shared
    data, following = cupy.zeros(64 << 18, cupy.uint32), cupy.zeros(CHASE_LINES * 32, cupy.uint32)
    rows = PIECE_BYTES // (THREADS * ACCESS_BYTES)

    def rate(asked: Sequence[int], beside: Sequence[int]) -> float:
        rank = np.full(sms, -1, np.int32)
        chosen = [*asked, *beside]
        rank[chosen] = np.arange(len(chosen))
        found = []
        for _ in range(3):
            arrived, slots, sink = cupy.zeros(1, cupy.uint32), cupy.zeros(sms, cupy.uint32), cupy.zeros(1, cupy.uint32)
            cycles = cupy.zeros(READERS * sms + 1, cupy.float32)
            numbers = (np.int32(rows), np.int32(PASSES), cupy.asarray(rank), np.int32(READERS))
            arguments = (data, *numbers, arrived, slots, following, np.int32(1), cycles, sink)
            kernel((READERS * sms,), (THREADS,), arguments, shared_mem=shared)
            found.append(float(cycles.get()[: READERS * len(asked)].mean()))
        return READERS * rows * THREADS * ACCESS_BYTES * PASSES / float(np.median(found))

    return rate


def result(order: Sequence[int], rate: Rate) -> Mapping[str, object]:
    """What the file holds: GPC of each SM, and how much the SMs of each read together."""
    gpc_of = group(order, rate)
    gpcs = [[sm for sm in order if gpc_of[sm] == number] for number in range(max(gpc_of.values()) + 1)]
    together = [len(sms) * rate(sms, ()) for sms in gpcs]
    return {
        "gpc_of_sm": [gpc_of[sm] for sm in range(len(order))],
        "sms_of_gpc": [len(sms) for sms in gpcs],
        "bytes_per_clk_of_gpc": [round(value, 1) for value in together],
        "bytes_per_clk_of_sm_alone": round(rate(order[:1], ()), 2),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="gpcs.json")
    parser.add_argument("--starts", default="cta_starts.json", help="from kernels_cupy.microbench.cta_starts")
    arguments = parser.parse_args()
    order = json.loads(Path(arguments.starts).read_text())["one_small_cta_per_sm"]["last_run"]["sm"]
    found = {**provenance(SOURCE, Path(__file__)), **result(order, measured_rate())}
    Path(arguments.output).write_text(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
