"""Bandwidth of streams by working set, SMs and threads, by CUDA events; TB/s of bytes that SMs read and write.

    python -m kernels_cupy.microbench.streams -o streams.csv --partitions partitions.json

`read_fixed`: 2 CTAs per SM read a buffer 8 times, each byte always by the same CTA; `read_shifted`: in pass r CTA b
reads the pieces of CTA b + 37 r. `read_all`: every CTA reads everything. `sms_dram`, `threads_dram`: so many CTAs, or a
CTA per SM of so many threads, read 1 GiB once. `partition_dram`: SMs of one L2 partition do (left out without it).
`sm_write_l2` (bytes per SM cycle): one SM writes 64 KiB again and again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kernels_cupy.microbench.bench import MIB, Bench, write_curves
from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 1024
ROW_BYTES = THREADS * 16
PASSES = 8
SHIFT = 37
LARGE_MIB = 1024
L2_SHARES: tuple[float, ...] = (
    0.0167,
    0.0334,
    0.067,
    0.134,
    0.267,
    0.4,
    0.467,
    0.534,
    0.6,
    0.667,
    0.734,
    0.8,
    0.867,
    0.934,
    1.0,
    1.067,
)
L2_SHARES += (1.2, 1.334, 1.6, 2.134)
"""Working sets as shares of the L2, beside 256 MiB and 1 GiB."""
SM_SHARES = (1, 2, 4, 8, 16, 0.25, 0.5, 0.75, 1.0)
"""SMs that read: a few, then shares of all."""
THREADS_PER_SM = (32, 64, 128, 256, 512, 1024)

Point = tuple[str, float, str, float, str]


def working_sets_mib(l2_bytes: int) -> list[int]:
    """Sizes of the buffer, MiB, smallest first."""
    return sorted({max(1, round(share * l2_bytes / MIB)) for share in L2_SHARES} | {256, LARGE_MIB})


def sm_counts(sms: int) -> list[int]:
    """How many SMs read."""
    few = {n for n in SM_SHARES if isinstance(n, int) and n <= sms}
    return sorted(few | {max(1, int(share * sms)) for share in SM_SHARES if isinstance(share, float)})


class Streams:
    """The launches, on one buffer of 1 GiB and another to copy to."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._data = bench.cupy.ones(LARGE_MIB * MIB // 4, np.uint32)
        self._ctas = 2 * bench.gpu.sm_count

    def reads(self, mib: int, shift: int) -> float:
        """TB/s of 8 passes over a buffer of `mib` MiB."""
        rows = np.int64(mib * MIB // ROW_BYTES)
        arguments = (self._data, rows, np.int32(PASSES), np.int32(shift), self._bench.sink)
        us = self._bench.time_us(lambda: self._bench.kernel("read_passes")((self._ctas,), (THREADS,), arguments))
        return PASSES * mib * MIB / us / 1e6

    def read_all(self, mib: int) -> float:
        """TB/s delivered when every CTA reads all."""
        arguments = (self._data, np.int64(mib * MIB // ROW_BYTES), self._bench.sink)
        us = self._bench.time_us(lambda: self._bench.kernel("read_all")((self._ctas,), (THREADS,), arguments))
        return self._ctas * mib * MIB / us / 1e6

    def once(self, ctas: int, threads: int) -> float:
        """TB/s of one pass over 1 GiB that is not in the L2 (a buffer a quarter as large for few CTAs)."""
        mib = LARGE_MIB if ctas > 8 else LARGE_MIB // 4
        rows = np.int64(mib * MIB // (threads * 16))
        arguments = (self._data, rows, np.int32(1), np.int32(0), self._bench.sink)
        us = self._bench.time_us(lambda: self._bench.kernel("read_passes")((ctas,), (threads,), arguments), 3)
        return mib * MIB / us / 1e6

    def chosen(self, sms: Sequence[int]) -> float:
        """TB/s of one pass over 1 GiB by these SMs, one CTA on each."""
        shared = self._bench.gpu.shared_bytes_per_cta
        rank = np.full(self._bench.gpu.sm_count, -1, np.int32)
        rank[list(sms)] = np.arange(len(sms))
        kernel = self._bench.kernel("read_chosen", shared)
        rows, where = np.int64(LARGE_MIB * MIB // ROW_BYTES), self._bench.cupy.asarray(rank)
        arguments = (self._data, rows, where, np.int32(len(sms)), self._bench.sink)
        launch = lambda: kernel((len(rank),), (THREADS,), arguments, shared_mem=shared)  # noqa: E731
        return LARGE_MIB * MIB / self._bench.time_us(launch, 3) / 1e6

    def write(self, mib: int) -> float:
        """TB/s of writing a buffer once."""
        arguments = (self._data, np.int64(mib * MIB // ROW_BYTES), np.uint32(7))
        us = self._bench.time_us(lambda: self._bench.kernel("write_rows")((self._ctas,), (THREADS,), arguments))
        return mib * MIB / us / 1e6

    def copy(self) -> float:
        """TB/s, read and write, of copying 1 GiB."""
        other = self._bench.cupy.zeros_like(self._data)
        arguments = (self._data, other, np.int64(LARGE_MIB * MIB // ROW_BYTES))
        us = self._bench.time_us(lambda: self._bench.kernel("copy_rows")((self._ctas,), (THREADS,), arguments))
        return 2 * LARGE_MIB * MIB / us / 1e6

    def one_sm_writes(self) -> float:
        """Bytes per cycle that one SM writes to the L2."""
        cycles = self._bench.cupy.zeros(1, np.float32)
        rows, passes = (64 << 10) // ROW_BYTES, 128
        for _ in range(2):
            self._bench.kernel("write_again")((1,), (THREADS,), (self._data, np.int32(rows), np.int32(passes), cycles))
        return rows * passes * ROW_BYTES / float(cycles.get()[0])


def measure(bench: Bench, partition_of_sm: Sequence[int]) -> Iterator[Point]:
    """Points of all curves."""
    streams = Streams(bench)

    def point(curve: str, x: float, x_unit: str, value: float, unit: str = "TB/s") -> Point:
        print(f"{curve:16} {x:6g} {x_unit:16} {value:8.3f} {unit}", flush=True)
        return curve, x, x_unit, value, unit

    for name, shift in (("read_fixed", 0), ("read_shifted", SHIFT)):
        for mib in working_sets_mib(bench.gpu.l2_bytes):
            yield point(name, mib, "MiB", streams.reads(mib, shift))
    for mib in (1, 8, 32):
        yield point("read_all", mib, "MiB", streams.read_all(mib))
    for mib in (64, 128, LARGE_MIB):
        yield point("write", mib, "MiB", streams.write(mib))
    yield point("copy", LARGE_MIB, "MiB", streams.copy())
    for count in sm_counts(bench.gpu.sm_count):
        yield point("sms_dram", count, "SMs", streams.once(count, THREADS))
    for threads in THREADS_PER_SM:
        yield point("threads_dram", threads, "threads per SM", streams.once(bench.gpu.sm_count, threads))
    own = [sm for sm, partition in enumerate(partition_of_sm) if partition == partition_of_sm[0]]
    for count in sorted({len(own) // 4, len(own) // 2, len(own)}) if own else ():
        yield point("partition_dram", count, "SMs", streams.chosen(own[:count]))
    yield point("sm_write_l2", 1, "SMs", streams.one_sm_writes(), "B/clk")


def main() -> None:
    """Measure all curves and write a CSV, provenance in its first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="streams.csv")
    parser.add_argument("--partitions", default="partitions.json", help="from kernels_cupy.microbench.partitions")
    arguments = parser.parse_args()
    path = Path(arguments.partitions)
    partition_of_sm = json.loads(path.read_text())["partition_of_sm"] if path.is_file() else []
    bench = Bench(SOURCE)
    facts = provenance(SOURCE, Path(__file__))
    before = bench.sm_clock_ghz()
    points = list(measure(bench, partition_of_sm))
    clocks = {"sm_clock_ghz_before": f"{before:.4f}", "sm_clock_ghz_after": f"{bench.sm_clock_ghz():.4f}"}
    write_curves(Path(arguments.output), facts | clocks, points)


if __name__ == "__main__":
    main()
