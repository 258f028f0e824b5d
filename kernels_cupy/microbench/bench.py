"""What the benchmarks of `kernels_cupy.calibrate` share: kernels of one source, event times, curves in a CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.commented_csv import write_facts
from kernels_cupy.compile import compile_source
from kernels_cupy.gpu import current_gpu, load
from kernels_cupy.toolkit import require_gpu

__all__ = ["CLOCK", "COUNTING_LIMIT_S", "MIB", "Bench", "write_curves", "write_table"]

MIB = 1 << 20
BETWEEN = Path(__file__).parent.parent / "between.cu"
CLOCK = Path(__file__).parent / "clock.cu"
COUNTING_LIMIT_S = 240
"""Longest that Nsight Compute may take for one benchmark."""
SPIN_CYCLES = 1_000_000
"""About 0.5 ms: longer than the host takes to queue what is timed."""


class Bench:
    """The GPU at hand with the kernels of `source`; Unavailable without a GPU."""

    def __init__(self, source: Path) -> None:
        self.cupy = require_gpu()
        self.gpu = current_gpu()
        self._source = source
        self._compiled = compile_source(source, {}, self.gpu.arch)
        self._spin = load(compile_source(BETWEEN, {}, self.gpu.arch), "spin")
        self._clock = load(compile_source(CLOCK, {}, self.gpu.arch), "sm_clock")
        self.sink = self.cupy.zeros(4, np.uint32)

    def kernel(self, entry: str, shared_bytes: int = 0) -> Any:
        """A kernel of the source, allowed that much dynamic shared memory."""
        return load(self._compiled, entry, shared_bytes)

    def has(self, entry: str) -> bool:
        """Whether the source has this kernel for the GPU at hand."""
        return entry in self._compiled.reports

    def time_us(self, launch: Callable[[], object], repeats: int = 5) -> float:
        """Median µs of a launch by CUDA events, queued while the GPU is kept busy, after one that is not counted."""
        taken = []
        for _ in range(repeats + 1):
            self._spin((1,), (1,), (np.int64(SPIN_CYCLES),))
            start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            launch()
            end.record()
            end.synchronize()
            taken.append(1e3 * float(self.cupy.cuda.get_elapsed_time(start, end)))
        return float(np.median(taken[1:]))

    def sm_clock_ghz(self) -> float:
        """SM clock now: cycles of one SM over nanoseconds of the GPU's timer, over about 2 ms."""
        found = self.cupy.zeros(2, np.int64)
        self._clock((1,), (1,), (np.int64(4_000_000), found))
        cycles, nanoseconds = found.get()
        return float(cycles / nanoseconds)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.cupy.cuda.Device().synchronize()

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """What is launched within is what Nsight Compute watches, and nothing before."""
        self.synchronize()
        self.cupy.cuda.profiler.start()
        yield
        self.synchronize()
        self.cupy.cuda.profiler.stop()


def write_curves(path: Path, facts: Mapping[str, str], rows: Iterable[tuple[str, float, str, float, str]]) -> None:
    """Points as (curve, x, unit of x, value, unit), below the facts."""
    write_table(
        path,
        facts,
        ("curve", "x", "x_unit", "value", "unit"),
        ((c, f"{x:g}", u, f"{v:.5g}", w) for c, x, u, v, w in rows),
    )


def write_table(path: Path, facts: Mapping[str, str], columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A CSV file below its facts."""
    text = io.StringIO()
    write_facts(text, facts)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    path.write_text(text.getvalue())
