"""Do forward passes survive odd head shapes, empty sequences, and scores that overflow a careless softmax?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.traces.problems import assert_within, default_plan, expected, hook, random_inputs, reference, sequence_rows
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.problem import AttentionProblem

FORWARD = [name for name, module in ALGORITHMS.items() if module.order < 100]


def with_feature(*features: str) -> list[str]:
    return [name for name in FORWARD if set(features) <= set(hook(name, "FEATURES", ()))]


@pytest.mark.parametrize("algorithm", with_feature("dim_v"))
@pytest.mark.parametrize("seq, seq_kv", [(70, 300), (300, 70)])
@pytest.mark.parametrize("dims", [{"dim": 192, "dim_v": 128}, {"dim": 40, "dim_v": 80}, {"dim": 64, "v_dtype": "fp32"}])
def test_may_values_have_a_dimension_and_a_format_of_their_own(
    algorithm: str, seq: int, seq_kv: int, dims: dict[str, Any]
) -> None:
    plan = default_plan(algorithm, heads=7, kv_heads=1, seq=seq, seq_kv=seq_kv, causal=True, **dims)
    inputs = random_inputs(plan)
    outputs, right = numeric.run(plan, inputs, round_storage=False), expected(plan, inputs)
    for name in plan.outputs:
        assert_within(outputs[name], *right[name])


@pytest.mark.parametrize("algorithm", FORWARD)
@pytest.mark.parametrize("causal", [False, True])
def test_are_scores_of_ten_thousand_no_trouble(algorithm: str, causal: bool) -> None:
    plan = default_plan(algorithm, heads=2, seq=150, seq_kv=260, dim=64, causal=causal)
    inputs = random_inputs(plan)
    inputs |= {name: 100 * inputs[name] for name in ("Q", "K")}
    scores = inputs["Q"] @ inputs["K"].swapaxes(2, 3) * plan.problem.scale
    assert scores.max() > 1e4 and scores.min() < -1e4
    outputs, right = numeric.run(plan, inputs, round_storage=False), expected(plan, inputs)
    for name in plan.outputs:
        assert_within(outputs[name], *right[name])


@pytest.mark.parametrize("algorithm", FORWARD)
def test_does_a_key_whose_score_is_minus_infinity_weigh_nothing(algorithm: str) -> None:
    """Whole blocks of them at both ends, which come first in either order of the KV blocks; all keys of head 1."""
    plan = default_plan(algorithm, heads=2, seq=140, seq_kv=600, dim=64)
    inputs = random_inputs(plan)
    inputs["Q"] = np.abs(inputs["Q"]) + np.float32(0.1)
    hidden = np.r_[0:260, 300, 400:600]
    inputs["K"][:, 0, hidden, 5] = inputs["K"][:, 1, :, 5] = -np.inf
    outputs = numeric.run(plan, inputs, round_storage=False)
    kept = np.setdiff1d(np.arange(600), hidden)
    small = AttentionProblem(heads=1, seq=140, seq_kv=len(kept), dim=64)
    right = reference(small, inputs["Q"][:, :1], inputs["K"][:, :1, kept], inputs["V"][:, :1, kept])
    assert_within(outputs["O"][:, :1], right.output, right.output_bound)
    assert np.all(outputs["O"][:, 1] == 0)
    if "LSE" in outputs:
        assert_within(outputs["LSE"][:, :1], right.lse, right.lse_bound)
        assert np.all(np.isneginf(outputs["LSE"][:, 1]))


@pytest.mark.parametrize("algorithm", with_feature("lengths"))
@pytest.mark.parametrize("causal", [False, True])
def test_is_the_answer_of_a_sequence_the_same_in_any_batch(algorithm: str, causal: bool) -> None:
    lengths, kv_lengths = (33, 0, 150, 70), (200, 40, 0, 150)
    plan = default_plan(algorithm, heads=2, lengths=lengths, kv_lengths=kv_lengths, dim=64, causal=causal)
    inputs = random_inputs(plan)
    output = numeric.run(plan, inputs, round_storage=False)["O"]
    assert np.all(output[sequence_rows(output, lengths, 2)] == 0), "queries without keys"
    for b in (0, 3):
        alone = default_plan(algorithm, heads=2, seq=lengths[b], seq_kv=kv_lengths[b], dim=64, causal=causal)
        own = {name: x[sequence_rows(x, lengths if name == "Q" else kv_lengths, b)][None] for name, x in inputs.items()}
        right = expected(alone, own)["O"]
        assert_within(output[sequence_rows(output, lengths, b)][None], *right)
    if len(output) == len(lengths):
        assert all(np.all(output[b, :, rows:] == 0) for b, rows in enumerate(lengths)), "padding"
