"""Small memory systems for the tests."""

from __future__ import annotations

from gpusim.memory.state import MemorySystem
from gpusim.spec import load_gpu
from traces.dtypes import DTYPES
from traces.tensor import Tensor, TensorTable

KIB, MIB = 1 << 10, 1 << 20


def tensors(*sizes: int) -> tuple[Tensor, ...]:
    """Tensors A, B, C … of so many bytes."""
    table = TensorTable()
    for name, size in zip("ABCDEFGH", sizes, strict=False):
        table.add(name, (1, 1, 1, size // 2), DTYPES["fp16"])
    return table.tensors


def system(*overrides: str, sizes: tuple[int, ...] = (MIB, MIB, MIB)) -> MemorySystem:
    """An H200 of 8 SMs, four on each L2 partition and all as far from it, without merging, changed by `overrides`."""
    gpu = load_gpu("h200", ["sm.count=8", "noc.coalescer=none", "noc.cpc_step=0", "noc.tpc_step=0", *overrides])
    return MemorySystem(gpu, tensors(*sizes))
