"""What an SM does per cycle: dense tensor FLOP by instruction and precision, FP32 FLOP, exponentials, shared bytes.

python -m kernels_cupy.microbench.rates -o rates.csv

All SMs work at once. The last rows are the SM clock, GHz, while the fastest tensor instruction runs for some seconds:
what `sm.sustained_clock` is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.bench import Bench, write_table
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
COLUMNS = ("instruction", "precision", "per_clk_per_sm", "unit", "sm_clock_ghz")
REPEATS = 4000
WGMMA_SHARED_BYTES = (128 + 256) * 128
SUSTAINED_S = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel of the source: `work` per repeat of a CTA of `threads` threads, in `unit`."""

    instruction: str
    precision: str
    threads: int
    work: int
    unit: str
    shared_bytes: int = 0

    @property
    def entry(self) -> str:
        return f"{self.instruction}_{self.precision}"


def _mma(precision: str, k: int) -> Case:
    return Case("mma", precision, 512, 16 * 8 * 2 * 16 * 8 * k, "FLOP")


def _wgmma(precision: str, k: int) -> Case:
    return Case("wgmma", precision, 256, 2 * 4 * 2 * 64 * 256 * k, "FLOP", WGMMA_SHARED_BYTES)


K = {"fp16": 16, "bf16": 16, "tf32": 8, "fp8": 32, "int8": 32}
"""Depth of an instruction: 32 bytes."""
CASES = (
    *(_mma(precision, k) for precision, k in K.items()),
    *(_wgmma(precision, k) for precision, k in K.items()),
    Case("fma", "fp32", 1024, 1024 * 8 * 2, "FLOP"),
    Case("exp", "fp32", 1024, 1024 * 8, "exponentials"),
    Case("shared", "read", 1024, 1024 * 8 * 16, "B"),
)


class Rates:
    """Runs cases on all SMs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._cycles = bench.cupy.zeros(bench.gpu.sm_count, np.float32)

    def per_clk(self, case: Case, repeats: int = REPEATS) -> float:
        """Work per cycle of an SM, median over SMs; 0 where the GPU has no such instruction."""
        self._cycles.fill(0)
        kernel = self._bench.kernel(case.entry, case.shared_bytes)
        arguments = (np.int32(repeats), self._cycles, self._bench.sink)
        kernel((self._bench.gpu.sm_count,), (case.threads,), arguments, shared_mem=case.shared_bytes)
        return case.work * repeats / float(np.median(self._cycles.get()))

    def sustained(self, case: Case) -> list[float]:
        """SM clock in GHz under `case`, launch after launch, for about `SUSTAINED_S` seconds."""
        repeats = 40 * REPEATS
        clocks: list[float] = []
        spent = 0.0
        while spent < SUSTAINED_S:
            start, end = self._bench.cupy.cuda.Event(), self._bench.cupy.cuda.Event()
            start.record()
            rate = self.per_clk(case, repeats)
            end.record()
            end.synchronize()
            seconds = float(self._bench.cupy.cuda.get_elapsed_time(start, end)) / 1e3
            spent += seconds
            clocks.append(case.work * repeats / rate / seconds / 1e9)
        return clocks


def measure(bench: Bench) -> Iterator[tuple[object, ...]]:
    """Rows of the CSV."""
    rates = Rates(bench)
    tensor: dict[Case, float] = {}
    for case in CASES:
        if not bench.has(case.entry):
            print(f"{case.entry:12} this GPU has no such instruction", flush=True)
            continue
        rates.per_clk(case)
        rate, clock = rates.per_clk(case), bench.sm_clock_ghz()
        if case.entry in ("mma_fp16", "wgmma_fp16"):
            tensor[case] = rate
        print(f"{case.entry:12} {rate:9.1f} {case.unit}/clk/SM", flush=True)
        yield case.instruction, case.precision, f"{rate:.5g}", case.unit, f"{clock:.4f}"
    fastest = max(tensor, key=lambda case: tensor[case])
    clocks = rates.sustained(fastest)
    for clock in clocks[len(clocks) // 2 :]:
        yield f"sustained {fastest.instruction}", fastest.precision, "", "", f"{clock:.4f}"
    print(f"SM clock under {fastest.entry}: {np.median(clocks[len(clocks) // 2 :]):.3f} GHz", flush=True)


def main() -> None:
    """Measure all cases and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="rates.csv")
    arguments = parser.parse_args()
    bench = Bench(SOURCE)
    write_table(Path(arguments.output), provenance(SOURCE, Path(__file__)), COLUMNS, list(measure(bench)))


if __name__ == "__main__":
    main()
