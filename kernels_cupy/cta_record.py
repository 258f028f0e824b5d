"""Builds of the kernels that record where and when each CTA ran, and what they have recorded.

How they do it, and what start and end mean, is said in `include/cta_record.cuh`. It costs a CTA a store of 24 bytes as
it starts and each of its warps two reductions as it ends; light kernels also take some registers more, which may leave
fewer of their CTAs on an SM (`Recorded.registers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.compile import Compiled
from kernels_cupy.gpu import variable
from kernels_cupy.kernel import KernelSpec
from kernels_cupy.toolkit import require_gpu
from traces.cta_times import CtaTimes

__all__ = ["Recorded", "Recorder", "recording"]

MACRO, STAMPS_MACRO = "RECORD_CTAS", "STAMPED_STEPS"
VARIABLE = "cta_records"
STAMPED_STEPS = 256
"""Steps of a loop that builds with stamps have room for."""
MOMENTS = ("placed", "issued", "arrived", "multiplied", "ready", "sent")
"""What a stamp may say, `Moment` in the header."""
Stamps = NDArray[np.float64]
"""[CTA, step, moment of `MOMENTS`]: cycles since the CTA started, NaN where no stamp was put."""
FIELDS = ("sm", "start_ns", "start_clock", "end_ns", "end_clock")
"""64-bit words of a record, `CtaTimes` in the header."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded run.

    Attributes:
        launches: times of the CTAs of each launch, in order.
        registers: per thread of each launch's recorded build.
        time_us: of the run, by CUDA events.
        stamps: of each launch, if asked for.
    """

    launches: tuple[CtaTimes, ...]
    registers: tuple[int, ...]
    time_us: float
    stamps: tuple[Stamps, ...] = ()


def recording(spec: KernelSpec, stamps: bool = False) -> KernelSpec:
    """The same launch, of the build that records its CTAs, and puts stamps on their way if asked to."""
    return replace(spec, defines={**spec.defines, MACRO: 1, **({STAMPS_MACRO: STAMPED_STEPS} if stamps else {})})


class Recorder:
    """What the launches of a session record, in device memory.

    Where a cubin's kernels write is a variable of the cubin, which launches and sessions may share: so it is set before
    every run (`prepare`), and between launches of one cubin (`point`).
    """

    def __init__(self, specs: Sequence[KernelSpec], compiled: Sequence[Compiled], stamps: bool = False) -> None:
        """Of launches of `recording` builds, and their cubins."""
        cupy = require_gpu()
        self._names = [spec.name for spec in specs]
        self._records = [cupy.zeros((spec.ctas, len(FIELDS)), np.uint64) for spec in specs]
        self._has_stamps = stamps
        shape = (STAMPED_STEPS, len(MOMENTS)) if stamps else (0,)
        self._stamps = [cupy.zeros((spec.ctas, *shape), np.uint32) for spec in specs]
        pairs = zip(self._records, self._stamps, strict=True)
        self._addresses = cupy.asarray([[array.data.ptr for array in pair] for pair in pairs], np.uint64)
        self._variables = [variable(cubin, VARIABLE) for cubin in compiled]
        shared = Counter(pointer.ptr for pointer in self._variables)
        self._shares = [shared[pointer.ptr] > 1 for pointer in self._variables]

    def prepare(self) -> None:
        """Queue what a run needs before it: all records zero, and every cubin's variable set."""
        for launch, (records, stamps) in enumerate(zip(self._records, self._stamps, strict=True)):
            records.data.memset_async(0, records.nbytes)
            stamps.data.memset_async(0, stamps.nbytes)
            self._point(launch)

    def point(self, launch: int) -> None:
        """Queue what this launch needs before it: its cubin's variable set, if others have changed it."""
        if self._shares[launch]:
            self._point(launch)

    def _point(self, launch: int) -> None:
        width = self._addresses[launch].nbytes
        self._variables[launch].copy_from_device_async(self._addresses.data + launch * width, width)

    def read(self) -> tuple[CtaTimes, ...]:
        """Times of each launch, once all are done; clocks less the smallest of them all."""
        tables = [records.get() for records in self._records]
        return times_of(self._names, tables)

    def read_stamps(self) -> tuple[Stamps, ...]:
        """Stamps of each launch, once all are done; empty without any."""
        if not self._has_stamps:
            return ()
        pairs = zip(self._records, self._stamps, strict=True)
        return tuple(stamps_of(records.get(), stamps.get()) for records, stamps in pairs)


def stamps_of(records: NDArray[np.uint64], clocks: NDArray[np.uint32]) -> Stamps:
    """Cycles since the start of each CTA, from its record and the low halves of clocks (0: no stamp)."""
    starts = records[:, FIELDS.index("start_clock")].astype(np.uint32)
    return np.where(clocks == 0, np.nan, (clocks - starts[:, None, None]).astype(np.float64))


def times_of(names: Sequence[str], tables: Sequence[NDArray[np.uint64]]) -> tuple[CtaTimes, ...]:
    """Times from records [CTA, field of `FIELDS`] of launches called `names`.

    Raises:
        RuntimeError: a CTA has left no record.
    """
    words = [dict(zip(FIELDS, table.astype(np.int64).T, strict=True)) for table in tables]
    for name, word in zip(names, words, strict=True):
        if missing := int(np.count_nonzero((word["start_ns"] == 0) | (word["end_ns"] == 0))):
            raise RuntimeError(f"{missing} CTAs of kernel {name} have left no record")
    first_clock = min(int(word["start_clock"].min()) for word in words)
    return tuple(
        CtaTimes(
            kernel=name,
            sm=word["sm"],
            start_ns=(word["start_ns"] - word["start_ns"].min()).astype(np.float64),
            end_ns=(word["end_ns"] - word["start_ns"].min()).astype(np.float64),
            start_clock=(word["start_clock"] - first_clock).astype(np.float64),
            end_clock=(word["end_clock"] - first_clock).astype(np.float64),
        )
        for name, word in zip(names, words, strict=True)
    )
