"""When each CTA of a launch starts, and on which SM (%globaltimer ticks every 32 ns on Hopper).

python -m kernels_cupy.microbench.cta_starts -o cta_starts.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
SPIN_CYCLES = 20_000
LAUNCHES = {
    "one_small_cta_per_sm": (1, 128, 0),
    "one_full_cta_per_sm": (1, 384, 230_000),
    "two_ctas_per_sm": (2, 128, 65_536),
    "full_ctas_in_8_waves": (8, 384, 230_000),
    "full_ctas_of_32_threads_in_8_waves": (8, 32, 230_000),
    "full_ctas_of_1024_threads_in_8_waves": (8, 1024, 230_000),
    "half_ctas_of_32_threads_in_8_waves": (16, 32, 100_000),
    "half_ctas_of_256_threads_in_8_waves": (16, 256, 100_000),
    "half_ctas_of_1024_threads_in_8_waves": (16, 1024, 100_000),
}
"""Name → (CTAs per SM, threads per CTA, dynamic shared bytes per CTA)."""


def measure(ctas_per_sm: int, threads: int, shared_bytes: int, repeats: int = 5) -> list[dict[str, Any]]:
    """Start of each CTA after the first in ns, and its SM, for `repeats` launches (the first is discarded)."""
    import cupy

    kernel = cupy.RawModule(code=SOURCE.read_text()).get_function("cta_start")
    kernel.max_dynamic_shared_size_bytes = max(shared_bytes, 1)
    ctas = ctas_per_sm * cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
    launches = []
    for _ in range(repeats + 1):
        start, sm = cupy.zeros(ctas, cupy.uint64), cupy.zeros(ctas, cupy.uint32)
        kernel((ctas,), (threads,), (start, sm, np.int32(SPIN_CYCLES)), shared_mem=shared_bytes)
        ns = start.get()
        launches.append({"start_ns": (ns - ns.min()).tolist(), "sm": sm.get().tolist()})
    return launches[1:]


def turnover_ns(launch: dict[str, Any], resident: int) -> float:
    """Mean time from a CTA's start to its successor's on SMs that hold `resident` CTAs at a time, less the spinning."""
    by_sm: dict[int, list[int]] = {}
    for sm, ns in zip(launch["sm"], launch["start_ns"], strict=True):
        by_sm.setdefault(sm, []).append(ns)
    ordered = (np.sort(starts) for starts in by_sm.values())
    gaps = np.concatenate([starts[resident:] - starts[:-resident] for starts in ordered])
    return float(np.mean(gaps)) - SPIN_CYCLES / boost_ghz()


def boost_ghz() -> float:
    """Highest SM clock in GHz, which a spinning kernel runs at."""
    import cupy

    return float(cupy.cuda.Device().attributes["ClockRate"]) / 1e6


def tpc_lag_ns(launch: dict[str, Any]) -> float:
    """Mean lag of the second SM of a TPC behind the first, over TPCs whose SMs both have a first CTA."""
    first: dict[int, int] = {}
    for sm, ns in zip(launch["sm"], launch["start_ns"], strict=True):
        first.setdefault(sm, ns)
    return float(np.mean([first[sm + 1] - ns for sm, ns in first.items() if sm % 2 == 0 and sm + 1 in first]))


def main() -> None:
    """Measure all launches and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="cta_starts.json")
    output = parser.parse_args().output
    result: dict[str, Any] = dict(provenance(SOURCE))
    for name, launch in LAUNCHES.items():
        runs = measure(*launch)
        last = [max(run["start_ns"]) for run in runs]
        lag = float(np.mean([tpc_lag_ns(run) for run in runs]))
        result[name] = {"last_start_ns": last, "tpc_lag_ns": lag, "last_run": runs[-1]}
        if name.endswith("in_8_waves"):
            result[name]["turnover_ns"] = float(np.mean([turnover_ns(run, launch[0] // 8) for run in runs]))
            result[name]["clock_ghz"] = boost_ghz()
            print(f"from a CTA's end to its successor's start: {result[name]['turnover_ns']:.0f} ns")
        print(f"{name}: last CTA after {last} ns, second SM of a TPC {lag:.1f} ns after the first")
    Path(output).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
