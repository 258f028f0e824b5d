"""Packed split-KV decoding: what the common tests draw, and what is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.traces.decoding import cache_inputs, decode_problems, expected_outputs
from tests.traces.problems import assert_within
from traces import decoding, numeric
from traces.algorithms import decode_split
from traces.analytic import sm_port_bytes, textbook
from traces.problem import AttentionProblem

SCHEDULES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "tile_q": st.sampled_from((16, 32, 64)),
        "tile_kv": st.sampled_from((16, 24, 64, 128)),
        "stages": st.integers(1, 3),
        "warps": st.sampled_from((2, 4, 8)),
        "dequantise": st.sampled_from(("shared", "registers")),
        "splits": st.sampled_from((0, 0, 1, 2, 3, 7, 40)),
        "cta_slots": st.integers(1, 40),
        "combine_loads": st.integers(1, 16),
    }
)
FEATURES = decoding.FEATURES
problems_of, inputs_of, expected_of = decode_problems, cache_inputs, expected_outputs


def split_plan(splits: int = 0, **problem: Any) -> Any:
    shape = AttentionProblem(**problem)
    return decode_split.plan(shape, decode_split.default_schedule(shape, "wgmma", 132).changed({"splits": splits}))


@pytest.mark.parametrize("group", [1, 5, 7, 8])
@pytest.mark.parametrize("seq", [1, 4])
def test_is_the_cache_read_once_per_kv_head(group: int, seq: int) -> None:
    plan = split_plan(batch=3, heads=4 * group, kv_heads=4, seq=seq, seq_kv=1000)
    assert sm_port_bytes(plan)["K"] == textbook(plan)["K"] == (3 * 4 * 1000 * 256, 0)


@pytest.mark.parametrize(
    "batch, heads, kv_heads, keys, splits",
    [(1, 32, 32, 4096, 7), (1, 32, 8, 4096, 32), (16, 32, 8, 32768, 2), (64, 32, 8, 8192, 1)],
)
def test_are_the_splits_those_of_the_measured_kernels(
    batch: int, heads: int, kv_heads: int, keys: int, splits: int
) -> None:
    """Grids (1, splits, batch x KV heads) of experiments/measured/h200/torch_attention_cold.csv, 128 keys per step."""
    plan = split_plan(batch=batch, heads=heads, kv_heads=kv_heads, seq=1, seq_kv=keys)
    assert plan.launches[0].ctas == splits * batch * kv_heads
    assert len(plan.launches) == (1 if splits == 1 else 2)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 5, 8, 16, 100])
def test_do_splits_fill_the_gpu_to_85_percent_of_the_best(kv_heads: int) -> None:
    steps = 1024
    useful = [s for s in range(1, 129) if -(-steps // -(-steps // s)) == s]  # no split is without a step
    filled = {s: kv_heads * s / (264 * -(-kv_heads * s // 264)) for s in useful}
    ctas = split_plan(heads=kv_heads, seq=1, seq_kv=128 * steps).launches[0].ctas
    assert filled[ctas // kv_heads] >= 0.85 * max(filled.values())


def test_do_more_splits_than_steps_leave_empty_parts_that_count_for_nothing() -> None:
    plan = split_plan(100, heads=7, kv_heads=1, seq=2, kv_lengths=(300, 0, 1), causal=True)
    inputs = cache_inputs(plan, 3)
    outputs, right = numeric.run(plan, inputs, round_storage=False), expected_outputs(plan, inputs)
    for name in plan.outputs:
        assert_within(outputs[name], *right[name])
    empty = slice(2, 4)  # the rows of the sequence without a context
    assert np.all(outputs["O"][:, :, empty] == 0) and np.all(np.isneginf(outputs["LSE"][..., empty]))


def test_are_the_bytes_of_a_latent_counted_once() -> None:
    """DeepSeek-V2's: 512 latent columns and 64 of the rotated key, in one tensor, for 128 heads in two tiles of 64."""
    plan = split_plan(1, heads=128, seq=1, seq_kv=1000, dim=576, dim_v=512, mla=True)
    assert [t.name for t in plan.tensors] == ["KV", "Q", "O", "LSE"]
    assert textbook(plan)["KV"] == (1000 * 576 * 2, 0) and "V" not in textbook(plan)
    assert sm_port_bytes(plan)["KV"] == (2 * 1000 * 576 * 2, 0)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"kv_heads": 2, "heads": 4}, "kv_heads 2 with mla: all heads share one latent"),
        ({"dim_v": 256}, "dim_v 256 with mla is more than dim 128"),
        ({"kv_dtype": "fp8", "v_dtype": "fp16"}, "v_dtype fp16 with mla is not kv_dtype fp8"),
    ],
)
def test_is_a_latent_that_cannot_be_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AttentionProblem(mla=True, **wrong)
