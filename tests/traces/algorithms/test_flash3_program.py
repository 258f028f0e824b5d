"""Do FlashAttention-3's clusters, turns and FP8 do what they are for?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.algorithms.test_flash3 import inputs_of
from tests.traces.problems import (
    Arrays,
    accesses,
    assert_within,
    default_plan,
    normal_inputs,
    plans,
    reference,
    stream,
    work_items,
)
from traces import numeric
from traces.algorithms import flash3
from traces.analytic import sm_port_bytes
from traces.dtypes import DTYPES
from traces.launch import Plan
from traces.ops import Load, Matmul
from traces.problem import AttentionProblem


def fp8_plan(**shape: Any) -> Plan:
    return default_plan("flash3", dtype="fp8", **shape)


def scaled(plan: Plan, inputs: Arrays) -> tuple[np.ndarray[Any, Any], ...]:
    """Q, K and V that the stored ones and their scales stand for."""
    group = plan.problem.group
    q_scale = np.repeat(inputs["Q_scale"], group, axis=1)
    return inputs["Q"] * q_scale, inputs["K"] * inputs["K_scale"], inputs["V"] * inputs["V_scale"]


@st.composite
def cluster_plans(draw: st.DrawFn) -> Plan:
    plan: Plan = draw(plans("flash3", longest=300, dims=(32, 40, 64)))
    problem = {**plan.problem.to_dict(), "causal": False, "window": 0}
    changes = {"cluster": 2, "kv_order": "backward", "persistent_ctas": 2 * draw(st.integers(1, 4))}
    return flash3.plan(AttentionProblem.from_dict(problem), plan.schedule.changed(changes))


@given(plan=cluster_plans(), seed=st.integers(0, 1 << 30))
@settings(max_examples=15, deadline=None)
def test_does_a_cluster_compute_what_single_ctas_do(plan: Plan, seed: int) -> None:
    inputs = normal_inputs(plan, seed)
    alone = flash3.plan(plan.problem, plan.schedule.changed({"cluster": 1}))
    found, right = (numeric.run(p, inputs, round_storage=False) for p in (plan, alone))
    for name in plan.outputs:
        assert np.array_equal(found[name], right[name])
    assert sm_port_bytes(plan) == sm_port_bytes(alone)


@given(plan=cluster_plans())
@settings(max_examples=10, deadline=None)
def test_do_the_ctas_of_a_cluster_ask_for_each_byte_of_k_and_v_once(plan: Plan) -> None:
    (launch,) = plan.launches
    for first in range(0, launch.work_count, 2):
        pair = [item for rank in range(2) for item in launch.work(first + rank)]
        if not any(item.views[1].rows for item in pair):
            continue
        loads = [
            [(op.tile, op.multicast, op.share) for _, op in stream(launch, item).ops if isinstance(op, Load)]
            for item in pair
        ]
        keys = [[load for load in cta if load[0].matrix.name in "KV"] for cta in loads]
        assert len({item.views[1:3] for item in pair}) == 1
        assert {(multicast, share) for cta in keys for _, multicast, share in cta} == {
            (len(pair), rank) for rank in range(len(pair))
        }
        assert len({tuple(tile for tile, _, _ in cta) for cta in keys}) == 1


def test_are_clusters_for_wide_heads_without_a_mask() -> None:
    def cluster(**shape: Any) -> int:
        return int(default_plan("flash3", heads=1, **shape).schedule.cluster)

    assert cluster(seq=512, dim=128) == cluster(seq=512, dim=256) == 2
    assert cluster(seq=512, dim=64) == cluster(seq=512, dim=128, causal=True) == cluster(seq=384, dim=128) == 1
    with pytest.raises(ValueError, match="schedule key cluster is 2, but a causal mask needs 1"):
        flash3.plan(AttentionProblem(causal=True), flash3.Flash3Schedule(cluster=2))
    with pytest.raises(ValueError, match="schedule key persistent_ctas must be a positive multiple of 2, not 5"):
        flash3.Flash3Schedule(cluster=2, persistent_ctas=5)


@pytest.mark.parametrize("tile_q", [128, 192])
@pytest.mark.parametrize("overlap", [False, True])
def test_do_warpgroups_take_turns_at_the_tensor_cores_in_ping_pong(tile_q: int, overlap: bool) -> None:
    """With buffers for every block the first warpgroup could run through; in ping-pong it may not."""
    warpgroups = tile_q // 64
    problem = AttentionProblem(heads=1, seq=tile_q, seq_kv=128, dim=32)
    schedule = flash3.Flash3Schedule(tile_q=tile_q, tile_kv=16, stages=8, overlap=overlap)

    def issuers(ping_pong: bool) -> list[int]:
        """Who issues products, but for everyone's first and last, which are of no pair."""
        plan = flash3.plan(problem, schedule.changed({"ping_pong": ping_pong}))
        _, _, item = next(work_items(plan))
        agents = [agent for agent, op in stream(plan.launches[0], item).ops if isinstance(op, Matmul)]
        before = [agents[:n].count(agent) for n, agent in enumerate(agents)]
        return [agent for agent, count in zip(agents, before, strict=True) if 0 < count < 15]

    in_turn = [agent for _ in range(7) for agent in range(1, 1 + warpgroups) for _ in range(2)]
    assert issuers(True) == in_turn
    assert sorted(issuers(False)) == sorted(in_turn) and issuers(False) != in_turn


@given(seq=st.integers(1, 150), seq_kv=st.integers(1, 150), causal=st.booleans(), seed=st.integers(0, 1 << 30))
@settings(max_examples=15, deadline=None)
def test_does_fp8_cost_the_rounding_of_p_and_no_more(seq: int, seq_kv: int, causal: bool, seed: int) -> None:
    """P of 3 fraction bits is off by 1 part in 16 at most, or by half the smallest subnormal number, 2^-10 / 256."""
    plan = fp8_plan(heads=4, kv_heads=2, seq=seq, seq_kv=seq_kv, dim=64, causal=causal)
    inputs = {n: plan.tensor(n).dtype.round(x) for n, x in inputs_of(plan, seed).items()}
    q, k, v = scaled(plan, inputs)
    right = reference(plan.problem, q, k, v)
    magnitude = reference(plan.problem, q, k, np.abs(v)).output
    # A row's largest P is 1, so its sum is at least 1 and the smallest numbers weigh no more than without it.
    least = 2.0**-18 * np.repeat(np.abs(v).sum(axis=2, keepdims=True), plan.problem.group, axis=1)
    found = numeric.run(plan, inputs, round_storage=False)
    assert_within(found["LSE"], right.lse, right.lse_bound)
    assert_within(found["O"], right.output, magnitude / 16 + least + right.output_bound)


def test_what_does_fp8_cost() -> None:
    """Relative error (root mean square) of O on normal numbers: P alone about 2 %, with Q, K and V in FP8 about 4 %."""
    plan = fp8_plan(heads=2, seq=384, dim=128)
    inputs = normal_inputs(plan, 0) | {name: np.ones((1, 2, 1, 1), np.float32) for name in plan.inputs[3:]}
    stored = {name: DTYPES["fp8"].round(x) for name, x in inputs.items()}

    def error(exact: Arrays) -> float:
        right = reference(plan.problem, exact["Q"], exact["K"], exact["V"]).output
        off = numeric.run(plan, stored)["O"] - right
        return float(np.sqrt(np.mean(off**2) / np.mean(right**2)))

    assert 0.015 < error(stored) < 0.03
    assert 0.03 < error(inputs) < 0.06


def test_is_v_transposed_and_o_written_in_bf16_with_fp8() -> None:
    plan = fp8_plan(heads=1, seq=256, dim=128)
    assert plan.tensor("O").dtype.name == "bf16"
    _, _, item = next(work_items(plan))
    agents = plan.launches[0].agents(item.matrices(), item.parameters)
    assert len(agents) == 2 + plan.schedule.tile_q // 64
    loads = {op.tile.matrix.name for op, _ in accesses(plan) if isinstance(op, Load)}
    assert loads == {"Q", "K", "V", "Q_scale", "K_scale", "V_scale"}
    moved = sm_port_bytes(plan)
    assert moved["K"] == (2 * 256 * 128, 0) and moved["Q_scale"] == (2 * 2 * 4, 0)
