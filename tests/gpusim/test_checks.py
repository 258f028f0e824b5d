"""Do the books balance on every machine for every problem, and is a wrong counter noticed?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpusim.machine
from gpusim.checks import ConservationError, check_kernel
from gpusim.counters import C
from gpusim.machine import L2_STARTS, simulate
from gpusim.memory.l2.policies import REPLACEMENTS, SLICE_HASHES
from gpusim.memory.state import MemorySystem
from gpusim.result import KernelResult
from tests.gpusim.simulations import counts, machine, plan_of, random_plans, run
from traces.launch import Plan

MACHINES = st.fixed_dictionaries(
    {
        "l2.size": st.sampled_from(("0", "64KiB", "256KiB", "1MiB", "60MiB", "inf")),
        "l2.home_allocation": st.sampled_from(("none", "evict_first", "middle", "allocate")),
        "l2.write_policy": st.sampled_from(("write_back", "write_back", "write_through", "write_around")),
        "l2.replacement": st.sampled_from(("lru", "lru", *REPLACEMENTS)),
        "l2.slice_hash": st.sampled_from(tuple(SLICE_HASHES)),
        "memory_side_cache.size": st.sampled_from(("0", "0", "256KiB", "64MiB")),
        "l2.partitions": st.sampled_from(("1", "2", "2")),
        "noc.coalescer": st.sampled_from(("merge", "none")),
        "sm.count": st.sampled_from(("1", "8", "132")),
    }
)


@given(plan=random_plans(), keys=MACHINES, l2=st.sampled_from(L2_STARTS))
@settings(max_examples=60, deadline=None)
def test_do_the_books_balance_for_any_problem_on_any_machine(plan: Plan, keys: dict[str, str], l2: str) -> None:
    result = run(plan, *(f"{key}={value}" for key, value in keys.items()), l2=l2)
    dirty = result.kernels[-1].dirty_bytes
    idle = result.total().idle_write_by_tensor
    read, written = counts(result, C.DRAM_READ), counts(result, C.DRAM_WRITE)
    for t in plan.tensors:
        size = 32 * -(-t.size_bytes // 32)
        if t.name in plan.inputs:
            assert written[t.name] == dirty[t.name] == 0
        elif l2 != "flush":  # each written sector has gone to DRAM, or is still dirty
            assert written[t.name] + idle[t.name] + dirty[t.name] >= size
            before = dirty[t.name] if l2 == "warm" else 0
            if l2 != "warm" or keys["memory_side_cache.size"] == "0":  # which may hold more of the round before
                assert written[t.name] + idle[t.name] <= counts(result, C.SM_WRITE)[t.name] + before
        assert dirty[t.name] <= size
        asked = counts(result, C.SM_READ)[t.name] + counts(result, C.L2_REDUCE)[t.name]
        assert read[t.name] <= counts(result, C.L2_MISS)[t.name] <= asked
    total = result.total()
    assert total.fabric_bytes <= total.l2_read_bytes + total.l2_write_bytes
    assert 0 <= total.l2_hit_rate <= 1 and 0 <= total.dram_utilisation <= 1 and 0 <= total.tensor_utilisation <= 1
    assert np.all(result.counts >= 0)


def balanced(plan: Plan) -> tuple[KernelResult, MemorySystem]:
    """A kernel's result that passes, and the memory system it left."""
    kept: list[MemorySystem] = []

    class Kept(MemorySystem):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpusim.machine, "MemorySystem", Kept)
        result = simulate(plan, machine("l2.size=1MiB"))
    check_kernel(result.kernels[-1], plan, plan.launches[-1], kept[0])
    return result.kernels[-1], kept[0]


@pytest.mark.parametrize("tensor", ("Q", "K", "O"))
@pytest.mark.parametrize("counter", (C.L2_HIT, C.L2_MISS, C.L2_WRITE, C.SM_WRITE, C.DRAM_READ, C.FAR_HIT))
@pytest.mark.parametrize("change", (1, -1))
def test_is_a_counter_that_is_off_by_one_sector_caught(tensor: str, counter: C, change: int) -> None:
    plan = plan_of("flash2", heads=2, seq=300, dim=64)
    kernel, memory = balanced(plan)
    wrong = kernel.counts.copy()
    wrong[plan.tensor(tensor).index, counter] += change
    with pytest.raises(ConservationError, match=rf"flash2_forward, {tensor}: "):
        check_kernel(replace(kernel, counts=wrong), plan, plan.launches[0], memory)


def test_are_l2_reads_beyond_what_sms_received_caught() -> None:
    plan = plan_of("flash2", heads=2, seq=300, dim=64)
    kernel, memory = balanced(plan)
    wrong = kernel.counts.copy()
    wrong[0, C.SM_READ] = wrong[0, C.L2_READ] - 1
    with pytest.raises(ConservationError, match="exceed"):
        check_kernel(replace(kernel, counts=wrong), plan, plan.launches[0], memory)


def test_are_dirty_sectors_that_nobody_booked_caught() -> None:
    plan = plan_of("flash2", heads=2, seq=300, dim=64)
    kernel, memory = balanced(plan)
    memory.values["dirty_sectors"][1] += 1
    with pytest.raises(ConservationError, match="dirty"):
        check_kernel(kernel, plan, plan.launches[0], memory)


def test_does_a_broken_counter_stop_a_checked_simulation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpusim.machine.KernelResult

    def broken(**fields: Any) -> KernelResult:
        fields["counts"][0, C.L2_MISS] += 1
        return real(**fields)

    monkeypatch.setattr(gpusim.machine, "KernelResult", broken)
    plan = plan_of("flash2", heads=1, seq=128, dim=64)
    simulate(plan, machine())
    with pytest.raises(ConservationError):
        simulate(plan, machine(), check=True)


@pytest.mark.parametrize("counter", (C.L2_REDUCE, C.L2_MISS))
def test_are_reductions_that_are_no_writes_and_misses_that_nobody_asked_for_caught(counter: C) -> None:
    plan = plan_of("flash2_backward", heads=1, seq=300, dim=64)
    result = run(plan, "l2.size=1MiB")
    kernel, number = result.kernels[1], plan.tensor("dQ_sum").index
    assert 0 < kernel.counts[number, C.L2_REDUCE] == kernel.counts[number, C.L2_WRITE]
    wrong = kernel.counts.copy()
    if counter == C.L2_REDUCE:
        wrong[number, counter] += 1
    else:  # books that balance, but with more misses than there were requests that can miss
        more = int(wrong[number, C.L2_REDUCE]) + 1
        wrong[number, [C.L2_WRITE, C.SM_WRITE, C.L2_MISS, C.FAR_HIT]] += more
    memory = MemorySystem(machine(), plan.tensors)
    with pytest.raises(ConservationError, match=r"flash2_backward, dQ_sum: (reductions|misses) exceed"):
        check_kernel(replace(kernel, counts=wrong), plan, plan.launches[1], memory)
