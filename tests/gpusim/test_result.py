"""Do results add up, and do they hold every field that the JSON contract names?"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusim.counters import C
from gpusim.machine import L2_STARTS
from gpusim.result import Result
from tests.gpusim.simulations import counts, plan_of, random_plans, run, whole_sums
from tests.traces.problems import ATTENTION
from traces.launch import Plan

BYTES = (
    *("dram_read_bytes", "dram_write_bytes", "l2_read_bytes", "l2_write_bytes", "fabric_bytes"),
    *("sm_read_bytes", "sm_write_bytes", "dirty_bytes_left"),
)
KERNEL = (
    *("name", "ctas", "cycles", "time_us", "flops", *BYTES, "l2_hit_rate"),
    *("shared_read_bytes", "shared_write_bytes", "tensor_utilisation", "dram_utilisation"),
)
RESULT = (
    *("gpu", "algorithm", "problem", "schedule", "kernels", "total", "by_tensor", "analytic"),
    *("wall_seconds", "sectors_per_second"),
)
ANALYTIC = ("hbm_bytes", "flops", "arithmetic_intensity", "ridge_point", "bound")
LEVELS = {
    "dram_read": (C.DRAM_READ,),
    "dram_write": (C.DRAM_WRITE,),
    "fabric": (C.FABRIC_READ, C.FABRIC_WRITE),
    "l2_read": (C.L2_READ,),
    "l2_write": (C.L2_WRITE,),
}


@pytest.fixture(scope="module", params=ATTENTION)
def result(request: pytest.FixtureRequest) -> Result:
    plan = plan_of(request.param, heads=4, kv_heads=2, seq=330, seq_kv=400, dim=64, causal=True)
    return run(plan, "l2.size=512KiB")


@pytest.fixture(scope="module")
def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    return found


def test_does_the_document_hold_every_field_of_the_contract(document: dict[str, Any]) -> None:
    assert not set(RESULT) - document.keys()
    assert not set(ANALYTIC) - document["analytic"].keys()
    for kernel in (*document["kernels"], document["total"]):
        assert not set(KERNEL) - kernel.keys()
    for fields in document["by_tensor"].values():
        assert not set(BYTES) - fields.keys()


def test_does_the_document_say_what_was_simulated(document: dict[str, Any], result: Result) -> None:
    assert document["gpu"] == "h200" and document["algorithm"] == result.plan.algorithm
    assert document["problem"]["seq_kv"] == 400 and document["problem"]["kv_heads"] == 2
    assert document["schedule"] == result.plan.schedule.to_dict()
    assert [k["name"] for k in document["kernels"]] == [launch.name for launch in result.plan.launches]
    assert list(document["by_tensor"]) == [t.name for t in result.plan.tensors]


def test_is_the_total_the_sum_of_the_kernels(document: dict[str, Any], result: Result) -> None:
    kernels, total = document["kernels"], document["total"]
    for name in (*BYTES[:-1], "ctas", "flops", "shared_read_bytes", "shared_write_bytes"):
        assert total[name] == sum(k[name] for k in kernels), name
    for name in ("cycles", "time_us"):
        assert total[name] == pytest.approx(sum(k[name] for k in kernels))
    assert total["dirty_bytes_left"] == kernels[-1]["dirty_bytes_left"]
    assert result.cycles == pytest.approx(total["cycles"])


def test_do_tensors_sum_to_the_total(document: dict[str, Any]) -> None:
    for name in BYTES:
        assert sum(fields[name] for fields in document["by_tensor"].values()) == document["total"][name]
        for kernel in document["kernels"]:
            assert sum(fields[name] for fields in kernel["by_tensor"].values()) == kernel[name]


def test_do_kernels_follow_each_other(document: dict[str, Any]) -> None:
    now = 0.0
    for kernel in document["kernels"]:
        assert kernel["start_cycle"] == pytest.approx(now)
        now += kernel["cycles"]


def test_are_rates_what_their_names_say(result: Result) -> None:
    total, c = result.total(), result.counts.sum(axis=0)
    assert total.l2_hit_rate == pytest.approx(c[C.L2_HIT] / (c[C.L2_HIT] + c[C.L2_MISS]))
    # Stores count as hits: what misses is reads, and sums that are added to.
    looked_up = total.l2_read_bytes + total.l2_write_bytes
    assert total.l2_hit_rate == pytest.approx(1 - 32 * c[C.L2_MISS] / looked_up)
    assert 32 * int(c[C.L2_MISS]) <= total.l2_read_bytes + 32 * int(c[C.L2_REDUCE])
    gpu = result.gpu
    moved = total.dram_read_bytes + total.dram_write_bytes
    seconds = total.time_us * 1e-6
    assert total.dram_utilisation == pytest.approx(moved / seconds / gpu.hbm.bandwidth_bytes_per_s)
    peak_per_cycle = gpu.sm.count * gpu.tensor_flops_per_clk("fp16")
    assert total.tensor_utilisation == pytest.approx(total.flops / total.cycles / peak_per_cycle)
    assert total.time_us == pytest.approx(sum(k.time_us for k in result.kernels))
    assert total.clock_hz == pytest.approx(total.cycles / seconds)
    for kernel in result.kernels:
        seconds = kernel.time_us * 1e-6
        moved = kernel.dram_read_bytes + kernel.dram_write_bytes
        assert kernel.dram_utilisation == pytest.approx(moved / seconds / gpu.hbm.bandwidth_bytes_per_s)
        peak = gpu.peak_flops("fp16", "sustained" if kernel.flops else "boost")
        assert kernel.tensor_utilisation == pytest.approx(kernel.flops / seconds / peak)


def test_do_kernels_with_products_run_at_the_clock_that_tensor_load_leaves(
    result: Result, document: dict[str, Any]
) -> None:
    gpu = result.gpu
    assert gpu.sm.sustained_clock_hz < gpu.sm.clock_hz
    for kernel, shown in zip(result.kernels, document["kernels"], strict=True):
        clock = gpu.sm.sustained_clock_hz if kernel.flops else gpu.sm.clock_hz
        assert kernel.clock_hz == clock
        assert shown["time_us"] == pytest.approx(1e6 * shown["cycles"] / clock)
        assert kernel.dram_peak_bytes_per_cycle == pytest.approx(gpu.hbm.bandwidth_bytes_per_s / clock)
    total = document["total"]
    assert document["machine"]["clock_hz"] == pytest.approx(1e6 * total["cycles"] / total["time_us"])


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_does_a_kernel_whose_first_block_sees_no_key_slow_down_as_well(algorithm: str) -> None:
    result = run(plan_of(algorithm, heads=2, seq=400, seq_kv=96, dim=64, causal=True))
    for kernel in result.kernels:
        assert kernel.clock_hz == (result.gpu.sm.sustained_clock_hz if kernel.flops else result.gpu.sm.clock_hz)


def test_is_a_kernel_without_l2_traffic_a_hit_rate_of_zero() -> None:
    plan = plan_of("flash2", heads=1, seq=64, dim=64)
    kernel = run(plan).kernels[0]
    kernel.counts[:] = 0
    assert kernel.l2_hit_rate == 0


def test_does_an_unknown_field_not_exist(result: Result) -> None:
    with pytest.raises(AttributeError, match="dram_bytes"):
        _ = result.kernels[0].dram_bytes


@given(plan=random_plans(100), size=st.sampled_from(("0", "256KiB", "60MiB")), l2=st.sampled_from(L2_STARTS))
@settings(max_examples=25, deadline=None)
def test_does_the_timeline_hold_exactly_what_is_counted(plan: Plan, size: str, l2: str) -> None:
    result = run(plan, f"l2.size={size}", l2=l2)
    timeline = result.timeline
    for level, counters in LEVELS.items():
        found = whole_sums(timeline.bytes[level])
        counted = counts(result, counters[0])
        for counter in counters[1:]:
            counted += counts(result, counter)
        if level == "dram_write":  # between kernels too
            counted += Counter(result.total().idle_write_by_tensor)
        assert found == {name: n for name, n in counted.items() if n}, level
    c = result.counts.sum(axis=0)
    assert timeline.activity["l2_hit_sectors"].sum() == c[C.L2_HIT]
    assert timeline.activity["l2_lookup_sectors"].sum() == c[C.L2_HIT] + c[C.L2_MISS]
    busy = sum(k.tensor_busy_cycles for k in result.kernels)
    assert timeline.activity["tensor_busy"].sum() == pytest.approx(busy)
    bins = {len(row) for row in timeline.activity.values()}
    bins |= {len(row) for by in timeline.bytes.values() for row in by.values()}
    assert len(bins) == 1
    # Memory may be at what was posted for a refresh more, when the last SM has ended.
    refresh = max(result.gpu.hbm.timing.rfc_pb_ns, result.gpu.hbm.timing.rfc_ab_ns) * result.gpu.sm.clock_hz / 1e9
    assert (bins.pop() - 1) * timeline.bin_cycles <= result.cycles + refresh
    assert all(np.all(row >= 0) for row in timeline.activity.values())


def test_is_the_memory_side_cache_in_the_document_only_where_there_is_one() -> None:
    plan = plan_of("naive", heads=1, seq=512, dim=64)
    small = ("l2.size=64KiB", "noc.coalescer=none")
    without = run(plan, *small).to_dict()
    document = run(plan, *small, "memory_side_cache.size=64MiB").to_dict()
    assert "memory_side_hit_bytes" not in without["total"]
    assert document["total"]["memory_side_hit_bytes"] > 0
    # What it holds is not read from DRAM. (That its hits and DRAM reads are all that the L2 asks for, `run` checks.)
    assert document["total"]["dram_read_bytes"] < without["total"]["dram_read_bytes"] / 2
    assert sum(t["memory_side_hit_bytes"] for t in document["by_tensor"].values()) > 0
