"""One kernel launch as plain data: what to compile, how to launch it, on which tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from kernels_cupy.compile import Compiled, compile_source, compile_together, is_compiled
from kernels_cupy.errors import CompileError
from traces.dtypes import DType

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel launch that nothing has been compiled or allocated for.

    The kernel's parameters are a device pointer for each of `tensors`, then a pointer to `counters` zeroed 32-bit words
    if there are any, then a pointer to each of `tables`, then `scalars`.

    Attributes:
        name: that of the `KernelLaunch` it is the real form of.
        source: the CUDA C++ file.
        entry: its `extern "C"` function.
        defines: preprocessor macros that specialise it.
        grid, block: CTAs and threads, (x, y, z).
        shared_bytes: dynamic shared memory per CTA.
        tensors: names of the plan's tensors, in argument order.
        scalars: NumPy scalars, in argument order; their types are those of the parameters.
        tables: int32 arrays that are no tensors of the plan, such as where sequences start.
        counters: 32-bit words that are zero at every launch, for tile schedulers and semaphores.
        hot: whether the kernel is expected to keep everything in registers (a spill fails the tests).
    """

    name: str
    source: Path
    entry: str
    defines: Mapping[str, int | str]
    grid: Triple
    block: Triple
    shared_bytes: int
    tensors: tuple[str, ...]
    scalars: tuple[np.generic, ...] = ()
    tables: tuple[tuple[int, ...], ...] = ()
    counters: int = 0
    hot: bool = field(default=True)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return math.prod(self.block)

    def compile(self, arch: str) -> Compiled:
        """The cubin for `arch`.

        Raises:
            CompileError: there is none, or its kernel takes other parameters than this launch gives.
        """
        compiled = compile_source(self.source, self.defines, arch)
        pointers = len(self.tensors) + (self.counters > 0) + len(self.tables)
        given = (*(8,) * pointers, *(scalar.itemsize for scalar in self.scalars))
        taken = compiled.parameter_bytes(self.entry)
        if given != taken:
            raise CompileError(
                f"kernel {self.entry} of {self.source.name} takes parameters of {taken} bytes, but is given {given}"
            )
        return compiled


def compile_all(specs: Sequence[KernelSpec], arch: str) -> tuple[Compiled, ...]:
    """The cubins of `specs`, in order, compiled at the same time; CompileError as `KernelSpec.compile`."""
    missing = [(s.source, s.defines, arch) for s in specs if not is_compiled(s.source, s.defines, arch)]
    if len(missing) > 1:
        compile_together(missing)
    return tuple(spec.compile(arch) for spec in specs)


_C_NAMES = {"fp16": "__half", "bf16": "__nv_bfloat16", "fp32": "float"}


def c_type(dtype: DType) -> str:
    """Name of a number format in CUDA C++.

    Raises:
        ValueError: the kernels do not handle it.
    """
    if dtype.name not in _C_NAMES:
        raise ValueError(f"dtype {dtype.name!r} has no CUDA kernel, only {', '.join(_C_NAMES)}")
    return _C_NAMES[dtype.name]


def aligned_elements(cols: int) -> int:
    """Elements of a row of 16-bit numbers that are aligned to their common size in every row: 8, 4, 2 or 1."""
    return next(n for n in (8, 4, 2, 1) if cols % n == 0)


def starts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Rows of packed tensors where sequences of these lengths start, and where the last one ends (cu_seqlens)."""
    return (0, *accumulate(lengths))


def require_supported(condition: bool, sentence: str) -> None:
    """ValueError(`sentence`) unless `condition`: what a kernel does not do."""
    if not condition:
        raise ValueError(sentence)
