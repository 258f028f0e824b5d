"""A study: one family of simulations and the curves that they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from experiments.micro.pattern import Pattern
from experiments.validation.curve import Curve
from gpusim.machine import simulate
from gpusim.result import KernelResult
from gpusim.spec import GpuSpec

__all__ = ["Advance", "Study", "by_name", "chosen", "run", "seconds", "stepped"]

Place = TypeVar("Place")
Advance = Callable[[float], None]
"""Called with the share of a study that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Study:
    """Simulations that belong together.

    Attributes:
        curves: names of the curves that it gives.
        simulate: runs them on a GPU.
    """

    curves: tuple[str, ...]
    simulate: Callable[[GpuSpec, Advance], list[Curve]]


def chosen(studies: Iterable[Study], only: str) -> list[Study]:
    """The studies with a curve whose name holds `only`."""
    return [study for study in studies if any(only in name for name in study.curves)]


def run(pattern: Pattern, gpu: GpuSpec) -> tuple[KernelResult, ...]:
    """Simulate a pattern from an empty L2, checking that bytes are conserved."""
    return simulate(pattern, gpu, check=True).kernels


def by_name(kernels: Iterable[KernelResult]) -> dict[str, KernelResult]:
    """The kernels by name."""
    return {kernel.name: kernel for kernel in kernels}


def seconds(kernel: KernelResult, gpu: GpuSpec, launched: bool = False) -> float:
    """Duration of a kernel, without the launch overhead unless it was `launched` as part of the measurement."""
    overhead = 0.0 if launched else gpu.sm.kernel_overhead_cycles
    return (kernel.cycles - overhead) / kernel.clock_hz


def stepped(places: Iterable[Place], advance: Advance) -> Iterator[Place]:
    """The places one after another; tells `advance` how many are behind."""
    every = list(places)
    for number, place in enumerate(every):
        advance(number / len(every))
        yield place
    advance(1.0)
