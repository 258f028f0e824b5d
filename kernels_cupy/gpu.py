"""The GPU at hand: its figures, and cubins loaded onto it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_cupy.compile import Compiled
from kernels_cupy.toolkit import architecture, require_gpu

SHARED_BYTES_UNASKED = 48 << 10
"""Dynamic shared memory that a launch may use without raising the kernel's limit first."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The card in use: name, compiler target, SMs, L2 and memory."""

    name: str
    arch: str
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes_per_cta: int


def current_gpu() -> Gpu:
    """The GPU that CuPy uses; Unavailable without one."""
    properties = require_gpu().cuda.runtime.getDeviceProperties(0)
    return Gpu(
        name=properties["name"].decode(),
        arch=architecture(properties["major"], properties["minor"]),
        sm_count=properties["multiProcessorCount"],
        l2_bytes=properties["l2CacheSize"],
        memory_bytes=properties["totalGlobalMem"],
        shared_bytes_per_cta=properties["sharedMemPerBlockOptin"],
    )


def load(compiled: Compiled, entry: str, shared_bytes: int = 0) -> Any:
    """The function `entry` of a cubin as a CuPy kernel, allowed `shared_bytes` of dynamic shared memory."""
    function = require_gpu().RawModule(path=str(compiled.path)).get_function(entry)
    if shared_bytes > SHARED_BYTES_UNASKED:
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


def variable(compiled: Compiled, name: str) -> Any:
    """Where the variable `name` of a cubin is in device memory, as a CuPy pointer.

    It is that of the kernels which `load` gives, as CuPy loads a file once.
    """
    return require_gpu().RawModule(path=str(compiled.path)).get_global(name)
