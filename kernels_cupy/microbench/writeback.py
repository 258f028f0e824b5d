"""Counters of written data on its way to memory, and of CTAs that read the same tiles together.

    python -m kernels_cupy.microbench.writeback -o l2_writeback_and_merging.csv

`lockstep …`: one CTA of 512 threads per SM (264 CTAs: two) reads 64 tiles of 64 KiB, CTA b starting skew x b cycles
late. Then, for each size, in one L2: evict (read 512 MiB of other data), write the buffer (one CTA per SM, a contiguous
piece each), read it back from the same CTA, then from another, evict again: what that writes to memory was still dirty
in the L2. Runs itself under Nsight Compute, which must be on the PATH and allowed to read counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels_cupy.gpu import Gpu, current_gpu
from kernels_cupy.microbench.bench import MIB, Bench
from kernels_cupy.microbench.l2_counters import Child, counting_main, write_counted
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
KERNELS = "regex:^(read_piece|write_piece|lockstep)$"
THREADS = 256
TILE_THREADS, TILE_BYTES, TILES = 512, 64 << 10, 64
SKEWS = (0, 50, 200, 1000)
EVICT_MIB = 512
L2_SHARES = (0.267, 0.4, 0.5, 0.534, 0.6, 0.667, 0.8, 0.934, 1.0, 1.067)


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: a kernel on `mib` MiB (of other data if it evicts), its number (shift or skew), and its CTAs."""

    name: str
    kernel: str
    mib: int
    ctas: int
    number: int = 0
    other: bool = False


def steps(gpu: Gpu) -> Iterator[Step]:
    """Every launch, in order."""
    sms, tiles = gpu.sm_count, TILES * TILE_BYTES // MIB
    for skew in SKEWS:
        yield Step(f"lockstep 64KiB x64 all {sms} CTAs skew {skew}", "lockstep", tiles, sms, skew)
    yield Step(f"lockstep {2 * sms} CTAs skew 0", "lockstep", tiles, 2 * sms)
    for mib in sorted({max(1, round(share * gpu.l2_bytes / MIB)) for share in L2_SHARES}):
        yield Step(f"evict all (read {EVICT_MIB} MiB)", "read_piece", EVICT_MIB, sms, other=True)
        yield Step(f"write {mib} MiB after clean L2", "write_piece", mib, sms)
        yield Step(f"read back same SM {mib} MiB", "read_piece", mib, sms)
        yield Step(f"read back other SM {mib} MiB", "read_piece", mib, sms, sms // 2 + 1)
        yield Step(f"evict all (read {EVICT_MIB} MiB) post {mib}", "read_piece", EVICT_MIB, sms, other=True)


def launch_all() -> None:
    """What Nsight Compute watches."""
    bench = Bench(SOURCE)
    data = bench.cupy.ones(max(s.mib for s in steps(bench.gpu) if not s.other) * MIB // 4, np.uint32)
    other = bench.cupy.ones(EVICT_MIB * MIB // 4, np.uint32)
    kernels = {name: bench.kernel(name) for name in ("read_piece", "write_piece", "lockstep")}
    with bench.profiled():
        for step in steps(bench.gpu):
            threads = TILE_THREADS if step.kernel == "lockstep" else THREADS
            rows = step.mib * MIB // (threads * 16)
            on = other if step.other else data
            arguments = {
                "read_piece": (on, np.int64(rows), np.int32(step.number), bench.sink),
                "write_piece": (on, np.int64(rows), np.uint32(7)),
                "lockstep": (on, np.int32(rows), np.int32(step.number), bench.cupy.zeros(1, np.uint32), bench.sink),
            }
            kernels[step.kernel]((step.ctas,), (threads,), arguments[step.kernel])


def main() -> None:
    """Count all launches and write a CSV, provenance in its first lines."""

    def count(child: Child, path: Path) -> None:
        names = [(step.name,) for step in steps(current_gpu())]
        write_counted(path, provenance(SOURCE, Path(__file__)), ("step",), KERNELS, child, names)

    counting_main(__doc__, "writeback", "l2_writeback_and_merging.csv", launch_all, count)


if __name__ == "__main__":
    main()
