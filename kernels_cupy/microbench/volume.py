"""The patterns of public L2 and stream benchmarks, on the card that is here, with time and counters.

    python -m kernels_cupy.microbench.volume -o volume.csv

`volume`: CTAs of 1024 threads read the piece b mod n of 512 KiB each, past the L1 or through it. `stream_read`: small
CTAs, two resident per SM, each thread reads 8 bytes once. Time is of CUDA events without a profiler, counters are read
by Nsight Compute (must be on the PATH), under which the module runs itself.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.counters import count_launches
from kernels_cupy.errors import Unavailable
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
METRICS = {
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_hit_sectors": "lts__t_sectors_srcunit_tex_lookup_hit.sum",
    "l2_miss_sectors": "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "fabric_sectors": "lts__t_sectors_srcunit_ltcfabric.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "sm_cycles": "sm__cycles_elapsed.max",
}
PIECE_BYTES = 512 << 10
CTAS_PER_SM = 8


@dataclass(frozen=True, slots=True)
class Case:
    """`volume` of `size` pieces, `cached` in the L1 or not; or `stream_read` with CTAs of `size` threads."""

    kernel: str
    size: int
    cached: int = 0

    @property
    def name(self) -> str:
        return f"{self.kernel}{' through L1' if self.cached else ''}"


def cases() -> list[Case]:
    """All launches, in order."""
    pieces = (2, 8, 16, 32, 44, 56, 64, 72, 80, 96, 112, 160)
    found = [Case("volume", n, cached) for cached in (0, 1) for n in pieces]
    return found + [Case("stream_read", threads) for threads in (32, 64, 128, 256, 512, 1024)]


def launcher(case: Case, module: Any, data: Any, sms: int) -> Any:
    """A function that launches the case once, and the bytes that one launch asks for."""
    import cupy

    sink = cupy.zeros(1, cupy.float64)
    kernel = module.get_function(case.kernel)
    if case.kernel == "volume":
        grid = sms * CTAS_PER_SM
        arguments = (data, np.int32(case.size), np.int32(case.cached), sink)
        return lambda: kernel((grid,), (1024,), arguments), grid * PIECE_BYTES
    shared = 100 << 10
    kernel.max_dynamic_shared_size_bytes = shared
    grid = data.nbytes // 8 // case.size // (8 if case.size < 256 else 1)
    return lambda: kernel((grid,), (case.size,), (data, sink), shared_mem=shared), grid * case.size * 8


def prepared() -> tuple[Any, Any, int]:
    """(compiled module, buffer, SMs)."""
    import cupy

    module = cupy.RawModule(code=SOURCE.read_text())
    sms = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
    return module, cupy.zeros(1 << 27, cupy.float64), sms


def launch_all() -> None:
    """Every case twice: the counters of the second launch are used (this is what Nsight Compute watches)."""
    import cupy

    module, data, sms = prepared()
    cupy.cuda.profiler.start()
    for case in cases():
        launch, _ = launcher(case, module, data, sms)
        launch()
        launch()
        cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.stop()


def times() -> list[tuple[float, int]]:
    """(median microseconds of a launch, bytes asked for) of each case, by CUDA events."""
    import cupy

    module, data, sms = prepared()
    found = []
    for case in cases():
        launch, moved = launcher(case, module, data, sms)
        taken = []
        for _ in range(12):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            launch()
            end.record()
            end.synchronize()
            taken.append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
        found.append((float(np.median(taken[2:])), moved))
    return found


def counters() -> list[dict[str, float]]:
    """Counters of each case; empty where Nsight Compute is not to be had."""
    try:
        return count_launches("regex:volume|stream_read", METRICS, ["kernels_cupy.microbench.volume", "--launch"])[1::2]
    except Unavailable as error:
        print(f"volume: no counters: {error}", file=sys.stderr)
        return [{} for _ in cases()]


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="volume.csv")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all()
        return
    with open(arguments.output, "w", newline="") as file:
        write_facts(file, provenance(SOURCE))
        table = csv.writer(file)
        table.writerow(["case", "size", "time_us", "bytes", *METRICS])
        for case, (time_us, moved), row in zip(cases(), times(), counters(), strict=True):
            counted = [int(row[name]) if name in row else "" for name in METRICS]
            table.writerow([case.name, case.size, f"{time_us:.2f}", moved, *counted])
            print(f"{case.name:20} {case.size:5} {moved / time_us / 1e6:7.3f} TB/s", *counted, flush=True)


if __name__ == "__main__":
    main()
