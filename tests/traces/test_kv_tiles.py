"""Do programs that read a quantised cache compute on what it stands for, and move no more than its small bytes?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.problems import (
    Arrays,
    accesses,
    assert_within,
    byte_addresses,
    default_plan,
    problems,
    reference,
    stream,
    work_items,
)
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.analytic import sm_port_bytes, textbook
from traces.kv_tiles import DEQUANTISE_INSTRUCTIONS_PER_4
from traces.launch import Plan
from traces.ops import Load, Store, Vector
from traces.problem import KV_SCALES, AttentionProblem
from traces.quantise import dequantised_cache, quantised_cache

SCALES = ("K_scale", "V_scale", "K_outliers", "K_outlier_index")


def _reads_quantised(name: str) -> bool:
    try:
        return "K_scale" in default_plan(name, heads=2, seq=1, seq_kv=64, dim=32, kv_dtype="int8").inputs
    except ValueError:
        return False


ALGORITHMS_WITH_CACHE = [name for name in ALGORITHMS if _reads_quantised(name)]


@st.composite
def quantised_plans(draw: st.DrawFn, longest: int = 150, dims: tuple[int, ...] = (32, 40, 64)) -> Plan:
    """Any shape with K, V or both quantised, one query row if the algorithm decodes."""
    name = draw(st.sampled_from(ALGORITHMS_WITH_CACHE))
    shape = draw(problems(longest, dims)).to_dict()
    formats = draw(
        st.sampled_from((("int8", ""), ("fp8", ""), ("int8", "fp8"), (shape["dtype"], "fp8"), ("int8", "fp16")))
    )
    shape |= {"kv_dtype": formats[0], "v_dtype": formats[1], "kv_scale": draw(st.sampled_from(KV_SCALES))}
    if formats[0] in ("int8", "fp8"):
        shape["outlier_channels"] = draw(st.integers(0, 3))
    return default_plan(name, **shape | ({"seq": 1} if ALGORITHMS[name].order >= 200 else {}))


def _inputs(plan: Plan, seed: int) -> Arrays:
    p = plan.problem
    generator = np.random.default_rng(seed)
    of = {n: plan.tensor(n) for n in "QKV"}
    q, k, v = (generator.standard_normal((t.batch, t.heads, t.rows, t.cols), np.float32) for t in of.values())
    return {"Q": q} | quantised_cache(p, k, v)


@given(plan=quantised_plans(), seed=st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_is_attention_that_of_the_dequantised_cache(plan: Plan, seed: int) -> None:
    inputs = _inputs(plan, seed)
    assert set(inputs) == set(plan.inputs)
    right = reference(plan.problem, inputs["Q"], *dequantised_cache(plan.problem, inputs))
    outputs = numeric.run(plan, inputs, round_storage=False)
    assert_within(outputs["O"], right.output, right.output_bound)
    if "LSE" in outputs:
        assert_within(outputs["LSE"], right.lse, right.lse_bound)


@given(plan=quantised_plans())
@settings(max_examples=40)
def test_do_closed_forms_equal_the_tiles_and_are_all_inputs_read_in_full(plan: Plan) -> None:
    moved: dict[str, list[int]] = {t.name: [0, 0] for t in plan.tensors}
    touched: dict[str, Any] = {t.name: np.zeros(t.size_bytes, bool) for t in plan.tensors}
    for op, view in accesses(plan):
        moved[view.tensor.name][isinstance(op, Store)] += op.tile.size_bytes
        touched[view.tensor.name][byte_addresses(op.tile, view) - view.tensor.base] = True
    assert sm_port_bytes(plan) == {name: tuple(counts) for name, counts in moved.items()}
    p = plan.problem
    if not p.causal or p.seq <= p.seq_kv:
        assert all(touched[name].all() for name in plan.inputs if name in ("K", "V", *SCALES))


@pytest.mark.parametrize("algorithm", ALGORITHMS_WITH_CACHE)
@pytest.mark.parametrize("code", ["int8", "fp8"])
def test_is_dequantisation_counted_per_element_of_every_tile(algorithm: str, code: str) -> None:
    shape: dict[str, Any] = {"heads": 2, "seq": 1, "seq_kv": 256, "dim": 64}
    plain, small = default_plan(algorithm, **shape), default_plan(algorithm, **shape, kv_dtype=code)
    work: list[Counter[str]] = []
    for plan in (plain, small):
        ops = [op for launch, _, item in work_items(plan) for _, op in stream(launch, item).ops]
        tiles = sum(op.tile.rows * op.tile.cols for op in ops if isinstance(op, Load) and op.tile.matrix.name in "KV")
        vectors = [op for op in ops if isinstance(op, Vector)]
        counted = {"instructions": sum(op.instructions for op in vectors), "tiles": tiles}
        work.append(Counter(counted | {"bytes": sum(op.shared_bytes for op in vectors)}))
    extra, elements = work[1] - work[0], work[1]["tiles"]
    assert extra["instructions"] == elements * DEQUANTISE_INSTRUCTIONS_PER_4[code, "fp16"] // 4
    assert extra["bytes"] == 3 * elements  # one byte read, two written


def test_is_a_gqa_8_cache_in_fp8_a_sixteenth_of_mha_in_fp16_apart_from_its_scales() -> None:
    shape: dict[str, Any] = {"heads": 64, "seq": 128, "seq_kv": 2048, "dim": 128}
    mha, gqa = default_plan("flash2", **shape), default_plan("flash2", **shape, kv_heads=8, kv_dtype="fp8")
    for name in "KV":
        assert mha.tensor(name).size_bytes == 16 * gqa.tensor(name).size_bytes
        assert textbook(mha)[name][0] == 16 * textbook(gqa)[name][0]
    scales = {name: textbook(gqa)[name][0] for name in ("K_scale", "V_scale")}
    assert scales == dict.fromkeys(("K_scale", "V_scale"), 8 * 2048 * 4)
    assert scales["K_scale"] * 32 == gqa.tensor("K").size_bytes  # 4 bytes for 128


@pytest.mark.parametrize("kv_scale, scales", [("token", 4 * 8 * 2048), ("channel", 4 * 8 * 128), ("head", 4 * 8)])
def test_are_scales_as_many_as_said(kv_scale: str, scales: int) -> None:
    plan = default_plan("flash2", heads=8, seq=16, seq_kv=2048, v_dtype="fp8", kv_scale=kv_scale)
    assert plan.tensor("V_scale").size_bytes == scales
    assert plan.inputs == ("Q", "K", "V", "V_scale"), "K stays as it is"


def test_is_a_sequence_of_zeros_attended_to_without_nan() -> None:
    plan = default_plan("flash2", heads=1, seq=16, seq_kv=70, dim=32, kv_dtype="fp8", outlier_channels=2)
    q = np.random.default_rng(0).standard_normal((1, 1, 16, 32), np.float32)
    nothing = np.zeros((1, 1, 70, 32), np.float32)
    outputs = numeric.run(plan, {"Q": q} | quantised_cache(plan.problem, nothing, nothing))
    assert (outputs["O"] == 0).all() and np.allclose(outputs["LSE"], np.log(70))


def test_are_algorithms_that_cannot_dequantise_honest_about_it() -> None:
    for name in set(ALGORITHMS) - set(ALGORITHMS_WITH_CACHE) - {"kv_append"}:
        with pytest.raises(ValueError, match=r"quantised_kv|one query row"):
            default_plan(name, heads=2, seq=64, dim=64, v_dtype="int8")


def test_is_a_cache_in_fp8_nearer_than_int8_per_head_where_a_channel_sticks_out() -> None:
    """The formats differ where they should: int8 has one step for all of a head, fp8 one per binade."""
    generator = np.random.default_rng(2)
    k, v = (generator.standard_normal((1, 1, 256, 64), np.float32) for _ in "KV")
    k[..., 3] *= 60
    errors = {}
    for code in ("int8", "fp8"):
        p = AttentionProblem(heads=1, seq=16, seq_kv=256, dim=64, kv_dtype=code, v_dtype="fp16", kv_scale="head")
        seen = dequantised_cache(p, quantised_cache(p, k, v))[0]
        errors[code] = np.linalg.norm(np.delete(seen - k, 3, 3)) / np.linalg.norm(np.delete(k, 3, 3))
    assert errors["fp8"] < 0.04 < 0.3 < errors["int8"]
