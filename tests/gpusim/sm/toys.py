"""Hand-made kernels of a few operations, and how long one SM takes over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpusim.machine import simulate
from gpusim.memory.access import read_tile
from gpusim.memory.state import MemorySystem
from gpusim.result import KernelResult
from gpusim.sm.pipes import JITTER_CYCLES
from gpusim.sm.program import MATMUL_LATENCY_CYCLES, SYNC_CYCLES
from gpusim.spec import GpuSpec, load_gpu
from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Matmul, Program, Vector
from traces.problem import AttentionProblem
from traces.tensor import Matrix, TensorTable

ROWS, COLS = 4096, 64
ROW_BYTES = COLS * 2
Agents = Callable[[Matrix], Sequence[Program]]
SHAPE = (128, 128, 64)
MATMUL = 2 * 128 * 128 * 64 / (4096 * 0.9)
"""Cycles that one product of that shape occupies the tensor cores: 4096 FLOP per cycle at 90 %."""
DEPTH = MATMUL_LATENCY_CYCLES["wgmma"]
PRODUCT = MATMUL + DEPTH


def near(low: float, vectors: int = 1) -> Any:
    """`low`, and the latency of so many vector steps."""
    return pytest.approx(low + vectors * SYNC_CYCLES, abs=vectors * JITTER_CYCLES / 2 + 1e-6)


def matmul(asynchronous: bool = False) -> Matmul:
    return Matmul(None, None, SHAPE, asynchronous=asynchronous)


def vector(cycles: int) -> Vector:
    """A step that occupies the vector pipes for so many cycles: 128 instructions each."""
    return Vector(lambda: None, (), instructions=128 * cycles)


def one_sm(*overrides: str) -> GpuSpec:
    """An H200 of a single SM that starts kernels and CTAs at once."""
    return load_gpu(
        "h200",
        [
            "sm.count=1",
            "sm.kernel_overhead=0",
            "sm.cta_launch_interval=0",
            "sm.cta_turnover=0",
            "sm.warp_launch=0",
            *overrides,
        ],
    )


def toy(
    agents: Agents,
    ctas: int = 1,
    per_sm: int = 8,
    items: int = 1,
    queue: int = 0,
    instruction: str = "wgmma",
    rows: tuple[int, ...] = (2048,),
    in_step: bool = True,
) -> Plan:
    """A kernel over one tensor A of 4096 rows of 128 bytes; item i sees `rows[i]` (or the last) rows from 128 i on."""
    table = TensorTable()
    a = table.add("A", (1, 1, ROWS, COLS), DTYPES["fp16"])

    def work(index: int) -> list[WorkItem]:
        numbers = range(index * items, (index + 1) * items)
        return [WorkItem((a.view(0, 0).window(128 * n, rows[min(n, len(rows) - 1)]),), ()) for n in numbers]

    def build(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return tuple(agents(matrices[0]))

    resources = CtaResources(2048 // per_sm, 32, 0)
    launch = KernelLaunch("toy", ctas, resources, work, build, instruction, queue=queue, in_step=in_step)
    return Plan("toy", AttentionProblem(), None, table.tensors, (launch,), ("A",), ())


def toy_of_two(first: Callable[[Matrix], Program], second: Callable[[Matrix], Program], instruction: str) -> Plan:
    """A kernel of two CTAs, each with a program of its own, over one tensor A as in `toy`, which may be stored to."""
    table = TensorTable()
    a = table.add("A", (1, 1, ROWS, COLS), DTYPES["fp16"])

    def work(index: int) -> list[WorkItem]:
        return [WorkItem((a.view(0, 0),), (index,))]

    def build(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return ((first, second)[parameters[0]](matrices[0]),)

    launch = KernelLaunch("toy", 2, CtaResources(256, 32, 0), work, build, instruction)
    return Plan("toy", AttentionProblem(), None, table.tensors, (launch,), (), ("A",))


def run(gpu: GpuSpec, plan: Plan) -> KernelResult:
    return simulate(plan, gpu, check=True).kernels[0]


class Loads:
    """What loads of a lone SM take: the same accesses made by hand on a memory system of its own.

    The SM runs at the clock that it keeps under tensor-core load, as it does in every kernel with a product.
    """

    def __init__(self, gpu: GpuSpec, plan: Plan) -> None:
        self._memory = MemorySystem(gpu, plan.tensors)
        self._memory.run_at(gpu.at_clock(gpu.clock_hz("sustained")))
        self._base = plan.tensors[0].base

    def done(self, row: int, rows: int, now: float) -> float:
        """Completion of a load of rows [row, row + rows) issued at `now`."""
        size = rows * ROW_BYTES
        return float(read_tile(self._memory.state, 0, 0, self._base + row * ROW_BYTES, 1, size, size, 0, 1, now))
