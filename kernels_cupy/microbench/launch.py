"""What a kernel launch costs beside the work of its CTAs, by CUDA events.

python -m kernels_cupy.microbench.launch -o launch.json

`overhead_us`: kernels of one CTA per SM that are busy for 20,000 cycles, queued one after another: time of one less the
cycles its CTAs took. `empty_us`: the same of a kernel that does nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.bench import Bench
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
LAUNCHES = 20
BUSY_CYCLES = 20_000


def measure(bench: Bench) -> dict[str, float]:
    """Times in µs, and the SM clock that they were taken at."""
    sms = bench.gpu.sm_count
    took = bench.cupy.zeros(sms, np.int64)
    empty, busy = bench.kernel("empty"), bench.kernel("busy")

    def together(launch: object) -> float:
        """µs per launch: twice as many launches less once as many, which leaves out what a single one costs."""

        def many(count: int) -> float:
            return bench.time_us(lambda: [launch() for _ in range(count)], 9)  # type: ignore[operator]

        return (many(2 * LAUNCHES) - many(LAUNCHES)) / LAUNCHES

    empty_us = together(lambda: empty((sms,), (128,), ()))
    busy_us = together(lambda: busy((sms,), (128,), (np.int32(BUSY_CYCLES), took)))
    clock = bench.sm_clock_ghz()
    return {
        "empty_us": round(empty_us, 4),
        "busy_us": round(busy_us, 4),
        "busy_cycles": float(took.get().mean()),
        "sm_clock_ghz": round(clock, 4),
        "overhead_us": round(busy_us - float(took.get().mean()) / clock / 1e3, 4),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="launch.json")
    output = parser.parse_args().output
    result = {**provenance(SOURCE, Path(__file__)), **measure(Bench(SOURCE))}
    Path(output).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
