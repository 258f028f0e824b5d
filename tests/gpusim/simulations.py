"""What the tests of the whole simulator share: random plans, small machines, counts per tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpusim.counters import C
from gpusim.machine import simulate
from gpusim.result import Result
from gpusim.spec import GpuSpec, load_gpu
from tests.traces.problems import ATTENTION, plans
from traces.algorithms import ALGORITHMS
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.tensor import AnyView, Tile

DIMS = (32, 40, 64, 80)


def machine(*overrides: str, name: str = "h200") -> GpuSpec:
    """A GPU on which tiles of any size fit."""
    return load_gpu(name, ["sm.shared_memory=8MiB", *overrides])


def plan_of(algorithm: str, schedule: dict[str, Any] | None = None, **problem: Any) -> Plan:
    """A plan of the default schedule, changed by `schedule`."""
    module, shape = ALGORITHMS[algorithm], AttentionProblem(**problem)
    default = module.default_schedule(shape, "mma_sync" if algorithm == "flash2" else "wgmma", 132)
    return module.plan(shape, default.changed(schedule or {}))


def run(plan: Plan, *overrides: str, l2: str = "cold", name: str = "h200") -> Result:
    """Simulate with every conservation check."""
    return simulate(plan, machine(*overrides, name=name), l2=l2, check=True)


def random_plans(longest: int = 120) -> st.SearchStrategy[Plan]:
    """Any algorithm that attends, any problem, any schedule."""
    return st.one_of([plans(algorithm, longest, DIMS) for algorithm in ATTENTION])


def sectors(tile: Tile, view: AnyView) -> int:
    """32-byte sectors that an access to `tile` touches, run by run."""
    offset, runs, run_bytes, pitch = tile.span(view)
    starts = [view.at(offset + r * pitch) for r in range(runs if tile.size_bytes else 0)]
    return sum((start + run_bytes - 1) // 32 - start // 32 + 1 for start in starts)


def whole_sums(rows: Mapping[str, NDArray[np.float64]]) -> dict[str, int]:
    """Bytes of each tensor over all bins: a bin holds a fraction of what was spread over it, their sum is whole."""
    sums = {name: math.fsum(row) for name, row in rows.items()}
    for name, total in sums.items():
        assert total == pytest.approx(round(total), rel=1e-12), name
    return {name: round(total) for name, total in sums.items()}


def counts(result: Result, counter: C) -> Counter[str]:
    """Bytes of one counter by tensor, over all kernels."""
    table = result.counts
    names = result.kernels[0].dirty_bytes  # the plan's tensors, and what a flush leaves
    return Counter({name: 32 * int(table[index, counter]) for index, name in enumerate(names)})
