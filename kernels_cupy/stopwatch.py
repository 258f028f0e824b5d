"""Times work on the GPU with CUDA events, from a known state of the L2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.compile import compile_source
from kernels_cupy.gpu import Gpu, load
from kernels_cupy.toolkit import require_gpu

L2_STATES = ("cold", "warm", "flush")
"""L2 before work is timed: `cold`, other data; `warm`, what ran before; `flush`, other data before every part of it."""

BETWEEN = Path(__file__).parent / "between.cu"
SPIN_CYCLES = 1_000_000
"""About 0.5 ms: longer than the host takes to queue the launches of one run."""


class Stopwatch:
    """Works on the current stream, so it can time any library's work there."""

    def __init__(self, gpu: Gpu) -> None:
        self._cupy = require_gpu()
        between = compile_source(BETWEEN, {}, gpu.arch)
        self._read_all, self._spin = load(between, "read_all"), load(between, "spin")
        self._ctas = 4 * gpu.sm_count
        self._other_data = self._cupy.zeros(gpu.l2_bytes, np.uint32)  # four times the L2
        self._sink = self._cupy.zeros(1, np.uint32)

    def time(self, parts: Sequence[Callable[[], object]], l2: str) -> list[float]:
        """Time of each of `parts` in µs, queued one after another while the GPU is kept busy.

        Raises:
            ValueError: `l2` is not one of `L2_STATES`.
        """
        if l2 not in L2_STATES:
            raise ValueError(f"l2 {l2!r} is not one of {', '.join(L2_STATES)}")
        if l2 == "cold":
            self.displace_l2()
        self._spin((1,), (1,), (np.int64(SPIN_CYCLES),))
        pairs = [self._between_events(part, l2 == "flush") for part in parts]
        pairs[-1][1].synchronize()
        return [1e3 * float(self._cupy.cuda.get_elapsed_time(*pair)) for pair in pairs]

    def displace_l2(self) -> None:
        """Fill the L2 with clean lines of other data."""
        vectors = np.int64(self._other_data.nbytes // 16)
        self._read_all((self._ctas,), (512,), (self._other_data, vectors, self._sink))

    def _between_events(self, part: Callable[[], object], flush: bool) -> tuple[Any, Any]:
        if flush:
            self.displace_l2()
        start = self._event()
        part()
        return start, self._event()

    def _event(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record()
        return event
