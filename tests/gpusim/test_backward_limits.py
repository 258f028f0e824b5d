"""Are the two limits of the backward passes exact: no L2, and an endless one?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gpusim.counters import C
from tests.gpusim.simulations import counts, plan_of, run
from traces.algorithms import ALGORITHMS
from traces.analytic import sm_port_bytes
from traces.launch import Plan

BACKWARD = [name for name, module in ALGORITHMS.items() if 100 <= module.order < 200]
SHAPES: dict[str, dict[str, Any]] = {
    "causal": {"heads": 2, "seq": 256, "dim": 64, "causal": True},
    "grouped queries, longer keys": {"heads": 4, "kv_heads": 2, "seq": 128, "seq_kv": 320, "dim": 64},
}


def ports(plan: Plan, way: int) -> Counter[str]:
    """The closed form of what crosses the SM ports; rows here are whole sectors."""
    return +Counter({name: both[way] for name, both in sm_port_bytes(plan).items()})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", BACKWARD)
def test_does_every_sm_byte_reach_hbm_without_an_l2_and_every_sum_come_from_there(algorithm: str, shape: str) -> None:
    plan = plan_of(algorithm, **SHAPES[shape])
    result = run(plan, "l2.size=0")
    added = counts(result, C.L2_REDUCE)
    assert +counts(result, C.SM_READ) == ports(plan, 0) and +counts(result, C.SM_WRITE) == ports(plan, 1)
    assert counts(result, C.DRAM_READ) == counts(result, C.SM_READ) + added
    assert counts(result, C.DRAM_WRITE) == counts(result, C.SM_WRITE)
    assert (added["dQ_sum"] > 0) == (algorithm != "naive_backward")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", BACKWARD)
def test_are_hbm_bytes_compulsory_with_an_endless_l2(algorithm: str, shape: str) -> None:
    plan = plan_of(algorithm, **SHAPES[shape])
    result = run(plan, "l2.size=inf")
    size = {t.name: t.size_bytes for t in plan.tensors}
    assert +counts(result, C.DRAM_READ) == Counter({name: size[name] for name in plan.inputs})
    assert not +counts(result, C.DRAM_WRITE)
    written = {name: n for name, n in result.kernels[-1].dirty_bytes.items() if n}
    assert written == {name: n for name, n in size.items() if name not in plan.inputs}
