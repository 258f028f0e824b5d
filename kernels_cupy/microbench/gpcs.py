"""Which SMs share a port to the L2 (a GPC): those that slow each other down when they stream from it.

    python -m kernels_cupy.microbench.gpcs -o gpcs.json --starts cta_starts.json

Some SMs that follow each other in one order or another (of CTAs, of numbers, by turns) are tried together: where each
gets much less than alone, they are of one GPC, and so is every TPC (two SMs) that they slow down. TPCs that no such set
slows down are tried with each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.microbench.sm_bandwidth import ACCESS_BYTES, CHASE_LINES, PIECE_BYTES, SOURCE
from kernels_cupy.provenance import provenance

THREADS, READERS, DEPTH, PASSES = 1024, 2, 4, 32
WINDOW = 12
"""SMs that are tried together: enough to fill a port, few enough to be of one GPC."""
TURNS = range(4, 13)
"""GPCs that CTAs may be handed to in turns."""
FULL = 0.65
"""A window whose SMs get less than this share of their rate alone is of one GPC."""
SLOWED = 0.85
"""A TPC is of the GPC whose window takes it below this share."""

Rate = Callable[[Sequence[int], Sequence[int]], float]
"""(SMs whose rate is asked for, SMs that stream beside them) → bytes per cycle of one of the former."""


def windows(order: Sequence[int]) -> Iterator[list[int]]:
    """Sets of `WINDOW` SMs that may be of one GPC, whole TPCs."""
    tpcs = list(dict.fromkeys(sm // 2 for sm in order))
    orders = [tpcs, sorted(tpcs), *([tpc for turn in range(n) for tpc in tpcs[turn::n]] for n in TURNS)]
    for some in orders:
        for first in range(len(some) - WINDOW // 2 + 1):
            yield [sm for tpc in some[first : first + WINDOW // 2] for sm in (2 * tpc, 2 * tpc + 1)]


def group(order: Sequence[int], rate: Rate) -> dict[int, int]:
    """GPC of each SM, numbered by the first SM of the CTA order; -1 where it shares a port with nobody."""
    alone = {sm: rate((sm,), ()) for sm in order}
    left = list(dict.fromkeys(sm // 2 for sm in order))
    groups: list[list[int]] = []
    for window in windows(order):
        if not {sm // 2 for sm in window} <= set(left) or rate(window, ()) >= FULL * alone[window[0]]:
            continue
        found = []
        for tpc in left:
            sms = (2 * tpc, 2 * tpc + 1)
            if rate(sms, [sm for sm in window if sm not in sms]) < SLOWED * rate(sms, ()):
                found.append(tpc)
        groups.append([sm for tpc in found for sm in (2 * tpc, 2 * tpc + 1)])
        left = [tpc for tpc in left if tpc not in found]
    rest = [sm for sm in order if sm // 2 in left]
    together = [sm for sm in rest if rate((sm,), [s for s in rest if s != sm]) < SLOWED * alone[sm]]
    place = {sm: at for at, sm in enumerate(order)}
    named = sorted((sms for sms in (*groups, together) if sms), key=lambda sms: min(place[sm] for sm in sms))
    return dict.fromkeys(order, -1) | {sm: number for number, sms in enumerate(named) for sm in sms}


def measured_rate(of_ctas: Callable[[Any], float]) -> Rate:
    """Rates on the GPU at hand, median of three launches; `of_ctas`: which of the CTAs' cycles counts."""
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
            found.append(float(of_ctas(cycles.get()[: READERS * len(asked)])))
        return READERS * rows * THREADS * ACCESS_BYTES * PASSES / float(np.median(found))

    return rate


def result(order: Sequence[int], rate: Rate, slowest: Rate) -> Mapping[str, object]:
    """What the file holds: GPC of each SM, and how much the SMs of each read together, at the pace of the slowest."""
    gpc_of = group(order, rate)
    gpcs = [[sm for sm in order if gpc_of[sm] == number] for number in range(max(gpc_of.values()) + 1)]
    together = [len(sms) * slowest(sms, ()) for sms in gpcs]
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
    found = {**provenance(SOURCE, Path(__file__)), **result(order, measured_rate(np.mean), measured_rate(np.max))}
    Path(arguments.output).write_text(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
