"""Puts a plan on the GPU: allocates its tensors, loads its kernels, launches and times them.

session = Session(plan, random_inputs(plan))
session.launch()
o = session.output("O")
times = session.time(repeat=20, l2="cold")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.algorithms import kernels
from kernels_cupy.arrays import decode, encode, fill_random, memory_shape, poison, storage_type
from kernels_cupy.cta_record import Recorded, Recorder, recording
from kernels_cupy.errors import Unavailable
from kernels_cupy.gpu import Gpu, current_gpu, load
from kernels_cupy.kernel import KernelSpec, compile_all
from kernels_cupy.stopwatch import Stopwatch
from kernels_cupy.toolkit import require_gpu
from traces.launch import Plan


@dataclass(frozen=True, slots=True)
class Times:
    """Times of `repeat` runs in µs, by CUDA events: of each kernel, [run, kernel], and of whole runs."""

    kernels_us: NDArray[np.float64]
    runs_us: NDArray[np.float64]

    @property
    def kernel_medians_us(self) -> list[float]:
        return [float(t) for t in np.median(self.kernels_us, axis=0)]

    @property
    def median_us(self) -> float:
        return float(np.median(self.runs_us))


class Session:
    """A plan on the GPU. Outputs and everything between are NaN until a kernel writes them."""

    def __init__(self, plan: Plan, inputs: Mapping[str, NDArray[np.float32]] | None, record: str = "") -> None:
        """Allocate, compile and load.

        Args:
            inputs: float32 values [batch, heads, rows, cols] for each of the plan's inputs; None for `fill_random`'s.
            record: take the builds that record their CTAs: `ctas`, or `stamps` for stamps on their way too.

        Raises:
            ValueError: the kernels do not support the plan, or it does not fit the card.
            Unavailable: no GPU or no CuPy.
        """
        self._cupy = require_gpu()
        self.plan = plan
        self.gpu = current_gpu()
        self.specs = kernels(plan)
        if record:
            self.specs = tuple(recording(spec, record == "stamps") for spec in self.specs)
        _check(plan, self.specs, self.gpu)
        self.compiled = compile_all(self.specs, self.gpu.arch)
        self.arrays = {t.name: self._cupy.empty(memory_shape(t), storage_type(t)) for t in plan.tensors}
        if inputs is None:
            fill_random(plan, self.arrays)
        else:
            for name in plan.inputs:
                self.arrays[name].set(encode(plan.tensor(name), inputs[name]))
        self._counters = [self._cupy.zeros(max(1, spec.counters), np.uint32) for spec in self.specs]
        self._tables = [[self._cupy.asarray(t, np.int32) for t in spec.tables] for spec in self.specs]
        self._functions = [load(c, s.entry, s.shared_bytes) for c, s in zip(self.compiled, self.specs, strict=True)]
        self._recorder = Recorder(self.specs, self.compiled, record == "stamps") if record else None
        self.stopwatch = Stopwatch(self.gpu)
        self.poison()

    def poison(self) -> None:
        """Fill every tensor that is not an input with NaN."""
        for tensor in self.plan.tensors:
            if tensor.name not in self.plan.inputs:
                self.arrays[tensor.name].fill(poison(tensor))

    def launch(self) -> None:
        """Queue all kernels on the current stream, once."""
        if self._recorder is not None:
            self._recorder.prepare()
        self._launch_all()

    def output(self, name: str) -> Any:
        """A tensor as a CuPy array float32 [batch, heads, rows, cols]."""
        return decode(self.plan.tensor(name), self.arrays[name])

    def time(self, repeat: int = 20, l2: str = "cold", warm_up: int = 3) -> Times:
        """Time `repeat` runs after `warm_up` untimed ones, with the L2 in state `l2` (one of `L2_STATES`) before each.

        Whole runs are timed apart from single kernels, so that events between kernels do not lengthen them; with
        `flush`, a run is the sum of its kernels.
        """
        for _ in range(warm_up):
            self.launch()
        single = np.array([self.stopwatch.time(self._parts(), l2) for _ in range(repeat)])
        if l2 == "flush":
            return Times(single, single.sum(axis=1))
        return Times(single, np.array([self.stopwatch.time([self.launch], l2)[0] for _ in range(repeat)]))

    def record(self, l2: str = "cold", warm_up: int = 3) -> Recorded:
        """What the CTAs of one run record, after `warm_up` others and with the L2 in state `l2`, as for `time`.

        Raises:
            ValueError: the session was not made to.
        """
        if self._recorder is None:
            raise ValueError("a session records its CTAs only when made with record='ctas' or 'stamps'")
        for _ in range(warm_up):
            self.launch()
        self._recorder.prepare()
        time_us = sum(self.stopwatch.time(self._parts() if l2 == "flush" else [self._launch_all], l2))
        registers = tuple(c.reports[s.entry].registers for c, s in zip(self.compiled, self.specs, strict=True))
        return Recorded(self._recorder.read(), registers, time_us, self._recorder.read_stamps())

    def _parts(self) -> list[Callable[[], None]]:
        return [partial(self._launch, number) for number in range(len(self.specs))]

    def _launch_all(self) -> None:
        for number in range(len(self.specs)):
            self._launch(number)

    def _launch(self, number: int) -> None:
        spec = self.specs[number]
        if self._recorder is not None:
            self._recorder.point(number)
        pointers = [self.arrays[name] for name in spec.tensors]
        if spec.counters:
            self._counters[number].data.memset_async(0, self._counters[number].nbytes)
            pointers.append(self._counters[number])
        pointers += self._tables[number]
        self._functions[number](spec.grid, spec.block, (*pointers, *spec.scalars), shared_mem=spec.shared_bytes)


def _check(plan: Plan, specs: tuple[KernelSpec, ...], gpu: Gpu) -> None:
    """ValueError or Unavailable for what the card cannot run, before anything is compiled."""
    if not gpu.arch.startswith("sm_90") and any(launch.instruction == "wgmma" for launch in plan.launches):
        raise Unavailable(f"the kernels of {plan.algorithm} use wgmma, which only Hopper GPUs have, not {gpu.name}")
    need = sum(tensor.size_bytes for tensor in plan.tensors)
    if need > gpu.memory_bytes:
        raise ValueError(
            f"algorithm {plan.algorithm} needs {need / 1e9:,.1f} GB for its tensors, but {gpu.name} has "
            f"{gpu.memory_bytes / 1e9:,.1f} GB"
        )
    for spec in specs:
        if spec.shared_bytes > gpu.shared_bytes_per_cta:
            raise ValueError(
                f"kernel {spec.name} needs {spec.shared_bytes} bytes of shared memory per CTA, but {gpu.name} has "
                f"{gpu.shared_bytes_per_cta}; choose smaller tiles or fewer stages"
            )
