"""Do the tile programs compute attention?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.problems import ATTENTION, assert_within, default_plan, expected, plans, random_inputs
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.launch import Plan
from traces.problem import AttentionProblem

FORWARD = [name for name, module in ALGORITHMS.items() if module.order < 100]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data(), seed=st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_are_the_results_right_within_fp32_rounding(algorithm: str, data: st.DataObject, seed: int) -> None:
    plan: Plan = data.draw(plans(algorithm, longest=130))
    inputs = random_inputs(plan, seed)
    outputs = numeric.run(plan, inputs, round_storage=False)
    right = expected(plan, inputs)
    for name in plan.outputs:
        assert_within(outputs[name], *right[name])


@pytest.mark.parametrize("algorithm", FORWARD)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_are_rows_that_see_no_key_zero_with_lse_minus_infinity(algorithm: str, layout: str) -> None:
    plan = default_plan(algorithm, heads=2, seq=300, seq_kv=70, dim=64, causal=True, layout=layout)
    outputs = numeric.run(plan, random_inputs(plan))
    assert np.all(outputs["O"][:, :, :230] == 0)
    assert np.all(np.isfinite(outputs["O"])) and np.all(outputs["O"][:, :, 230:] != 0)
    if "LSE" in plan.outputs:
        assert np.all(np.isneginf(outputs["LSE"][..., :230]))
        assert np.all(np.isfinite(outputs["LSE"][..., 230:]))


@pytest.mark.parametrize("algorithm", FORWARD)
@pytest.mark.parametrize("dtype, mantissa_bits", [("fp16", 10), ("bf16", 7)])
def test_does_storage_rounding_cost_what_the_format_costs(algorithm: str, dtype: str, mantissa_bits: int) -> None:
    plan = default_plan(algorithm, heads=1, seq=130, seq_kv=257, dim=64, dtype=dtype)
    inputs = {name: plan.tensor(name).dtype.round(x) for name, x in random_inputs(plan).items()}
    error = np.abs(numeric.run(plan, inputs)["O"] - expected(plan, inputs)["O"][0]).max()
    unit = 2.0 ** -(mantissa_bits + 1)
    # O itself is rounded once; naive also rounds scores (|S| < 8 here) and probabilities.
    assert unit / 64 < error < (16 if algorithm.startswith("naive") else 1.01) * unit


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_does_every_default_schedule_compute_attention(algorithm: str) -> None:
    for dim in (32, 40, 64, 80, 96, 128, 192, 256):
        for dtype in ("fp16", "fp32"):
            plan = default_plan(algorithm, heads=1, seq=65, seq_kv=190, dim=dim, dtype=dtype, causal=True)
            inputs = random_inputs(plan, dim)
            outputs, right = numeric.run(plan, inputs, round_storage=False), expected(plan, inputs)
            for name in plan.outputs:
                assert_within(outputs[name], *right[name])


def test_is_a_missing_or_misshapen_input_refused_by_name() -> None:
    plan = default_plan("flash2", heads=1, seq=16, dim=32)
    inputs = random_inputs(plan)
    with pytest.raises(ValueError, match=r"input V must have shape \(1, 1, 16, 32\), not nothing"):
        numeric.run(plan, {n: x for n, x in inputs.items() if n != "V"})
    with pytest.raises(ValueError, match="input K must have shape"):
        numeric.run(plan, inputs | {"K": inputs["K"][:, :, :8]})


@pytest.mark.parametrize("causal", [False, True])
@given(seq=st.integers(1, 40), seq_kv=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_are_flops_four_per_visible_pair_and_dimension(causal: bool, seq: int, seq_kv: int) -> None:
    p = AttentionProblem(heads=3, seq=seq, seq_kv=seq_kv, dim=16, causal=causal)
    pairs = sum(not causal or j <= i + seq_kv - seq for i in range(seq) for j in range(seq_kv))
    assert p.flops() == 4 * 3 * 16 * pairs
    assert [p.visible_keys(i) for i in range(seq)] == [
        sum(not causal or j <= i + seq_kv - seq for j in range(seq_kv)) for i in range(seq)
    ]
