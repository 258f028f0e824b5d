"""kv_append: problems and schedules to draw for the tests that every algorithm takes, and what is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import numeric
from traces.algorithms import ALGORITHMS, kv_append
from traces.analytic import analytic, sm_port_bytes, textbook
from traces.launch import Plan
from traces.problem import KV_SCALES, AttentionProblem
from traces.quantise import quantised_cache

SCHEDULES = st.fixed_dictionaries({"tile_kv": st.integers(1, 40)})

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@st.composite
def problems_of(
    draw: st.DrawFn, longest: int = 40, dims: tuple[int, ...] = (32, 40), whole: bool = True
) -> AttentionProblem:
    """Every format of the cache; `whole`: all of its rows are new."""
    new = draw(st.lists(st.integers(0, min(longest, 50)), min_size=1, max_size=3).filter(any))
    old = [0 if whole else draw(st.integers(0, 30)) for _ in new]
    lengths: dict[str, Any] = {"batch": 2, "seq": new[0] + 1, "seq_kv": new[0] + 1 + old[0]}
    if len(new) > 1:
        lengths = {"lengths": tuple(new), "kv_lengths": tuple(map(sum, zip(new, old, strict=True)))}
    k_format = draw(st.sampled_from(("fp16", "int8", "fp8")))
    return AttentionProblem(
        **lengths,
        heads=(heads := draw(st.integers(1, 3))),
        kv_heads=heads,
        dim=draw(st.sampled_from(dims)),
        dtype=draw(st.sampled_from(("fp16", "bf16", "fp32"))),
        kv_dtype=k_format,
        v_dtype=draw(st.sampled_from(("fp16", "int8", "fp8"))),
        kv_scale=draw(st.sampled_from(KV_SCALES)),
        outlier_channels=draw(st.integers(0, 4)) if k_format != "fp16" else 0,
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )


def inputs_of(plan: Plan, seed: int) -> Arrays:
    """New rows, and scales and outlier channels of the whole cache that they complete."""
    return _rows_and_cache(plan, seed)[0]


def expected_of(plan: Plan, inputs: Arrays) -> dict[str, tuple[Any, Any]]:
    """The cache quantised at once; there is nothing to be off by."""
    if plan.problem.lengths != plan.problem.kv_lengths or plan.problem.seq < plan.problem.seq_kv:
        raise ValueError("only a cache of new rows is known from the inputs")
    cache = quantised_cache(plan.problem, inputs["K_new"], inputs["V_new"])
    return {name: (cache[name].astype(float), np.zeros(cache[name].shape)) for name in plan.outputs}


def _is_new(p: AttentionProblem) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows of the cache tensor are new: [batch, rows]."""
    last = [np.arange(p.keys(b)) >= p.keys(b) - p.rows(b) for b in range(p.batch)]
    return np.concatenate(last)[None] if p.lengths else np.stack(last)


def _rows_and_cache(plan: Plan, seed: int) -> tuple[Arrays, Arrays]:
    """(inputs of the plan, the whole cache)."""
    p = plan.problem
    generator = np.random.default_rng(seed)
    of = {name: plan.tensor(name) for name in "KV"}
    whole = {n: generator.standard_normal((t.batch, t.heads, t.rows, t.cols), np.float32) for n, t in of.items()}
    cache, new = quantised_cache(p, whole["K"], whole["V"]), _is_new(p)
    rows = {
        f"{name}_new": x.transpose(0, 2, 1, 3)[new].reshape(len(x), -1, *x.shape[1::2]).transpose(0, 2, 1, 3)
        for name, x in whole.items()
    }
    return {name: (rows | cache)[name] for name in plan.inputs}, cache


@given(problem=problems_of(whole=False), tile_kv=st.integers(1, 40), seed=st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_does_a_cache_grow_by_what_quantising_all_of_it_would_give(
    problem: AttentionProblem, tile_kv: int, seed: int
) -> None:
    """Bit for bit, and no row that was there is touched."""
    plan = kv_append.plan(problem, kv_append.KvAppendSchedule(tile_kv))
    inputs, cache = _rows_and_cache(plan, seed)
    new = _is_new(problem)
    for name, found in numeric.run(plan, inputs, round_storage=False).items():
        by_row, right = found.transpose(0, 2, 1, 3), cache[name].transpose(0, 2, 1, 3)
        assert np.isnan(by_row[~new]).all(), name
        np.testing.assert_array_equal(by_row[new], right[new], name)


def test_does_one_token_cost_the_bytes_of_one_row() -> None:
    p = AttentionProblem(batch=64, heads=32, kv_heads=8, seq=1, seq_kv=4096, kv_dtype="fp8")
    plan = kv_append.plan(p, kv_append.default_schedule(p, "wgmma", 132))
    heads = 64 * 8
    one = {"K_new": (256 * heads, 0), "V_new": (256 * heads, 0), "K": (0, 128 * heads), "V": (0, 128 * heads)}
    assert sm_port_bytes(plan) == textbook(plan) == one | {"K_scale": (0, 4 * heads), "V_scale": (0, 4 * heads)}
    assert analytic(plan) == {"hbm_bytes": heads * (512 + 256 + 8), "flops": 0, "arithmetic_intensity": 0}
    assert plan.launches[0].ctas == heads


def test_does_a_given_scale_saturate_what_it_was_not_made_for() -> None:
    p = AttentionProblem(heads=1, seq=1, seq_kv=8, dim=8, kv_dtype="int8", kv_scale="channel")
    plan = kv_append.plan(p, kv_append.KvAppendSchedule())
    row = np.full((1, 1, 1, 8), 1000, np.float32)
    scale = np.full((1, 1, 1, 8), 0.5, np.float32)
    scale[..., 3] = 0  # a channel that was all zeros
    found = numeric.run(plan, {"K_new": row, "V_new": -row, "K_scale": scale, "V_scale": scale})
    assert found["K"][0, 0, -1].tolist() == [127, 127, 127, 0, 127, 127, 127, 127]
    assert found["V"][0, 0, -1].tolist() == [-127, -127, -127, 0, -127, -127, -127, -127]


def test_are_more_new_rows_than_the_cache_holds_refused() -> None:
    with pytest.raises(ValueError, match="seq 9 new rows do not fit a cache of seq_kv 8"):
        ALGORITHMS["kv_append"].plan(AttentionProblem(seq=9, seq_kv=8), kv_append.KvAppendSchedule())
    with pytest.raises(ValueError, match="tile_kv must be a positive multiple of 1, not 0"):
        kv_append.KvAppendSchedule(tile_kv=0)
