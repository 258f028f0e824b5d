"""Decoding with a CTA per query head: what the common tests draw, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.traces.decoding import cache_inputs, decode_problems, expected_outputs
from tests.traces.problems import default_plan
from traces import decoding
from traces.analytic import sm_port_bytes, textbook, total

SCHEDULES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "tile_q": st.sampled_from((16, 32, 64)),
        "tile_kv": st.sampled_from((16, 24, 64, 128)),
        "stages": st.integers(1, 3),
        "warps": st.sampled_from((2, 4, 8)),
        "dequantise": st.sampled_from(("shared", "registers")),
    }
)
FEATURES = decoding.FEATURES
problems_of, inputs_of, expected_of = decode_problems, cache_inputs, expected_outputs


@pytest.mark.parametrize("group", [1, 5, 7, 8])
def test_do_sm_ports_carry_the_cache_once_per_query_head_but_hbm_needs_it_once_per_kv_head(group: int) -> None:
    plan = default_plan("decode", batch=3, heads=4 * group, kv_heads=4, seq=1, seq_kv=1000)
    assert textbook(plan)["K"] == (3 * 4 * 1000 * 256, 0)
    assert sm_port_bytes(plan)["K"] == (group * 3 * 4 * 1000 * 256, 0)


def test_is_the_cache_of_a_70b_model_read_per_token_what_the_arithmetic_says() -> None:
    """80 layers, 8 KV heads of 128, 4096 tokens in fp16: K and V together are 1.34 GB, each of them 0.67 GB."""
    layer = textbook(default_plan("decode", heads=64, kv_heads=8, seq=1, seq_kv=4096))
    assert layer["K"] == layer["V"] == (8 * 128 * 4096 * 2, 0)
    assert 80 * (layer["K"][0] + layer["V"][0]) == 1_342_177_280


def test_are_grouped_queries_and_an_8_bit_cache_a_sixteenth_of_mha_in_fp16() -> None:
    """64:8 query to KV heads is 1/8 of the cache, 8 bits instead of 16 the other half. By the sizes of K and V alone:
    scales come on top.
    """
    full = textbook(default_plan("decode", heads=64, seq=1, seq_kv=4096))
    grouped = textbook(default_plan("decode", heads=64, kv_heads=8, seq=1, seq_kv=4096))
    assert 8 * grouped["K"][0] == full["K"][0]
    assert 16 * grouped["K"][0] // 2 == full["K"][0]


def test_are_rows_without_a_context_zero_and_free() -> None:
    plan = default_plan("decode", heads=7, kv_heads=1, seq=1, kv_lengths=(0, 64, 0), dim=64)
    read = {name: read for name, (read, _) in sm_port_bytes(plan).items()}
    assert read == {"Q": 7 * 128, "K": 7 * 64 * 128, "V": 7 * 64 * 128, "O": 0, "LSE": 0}
    assert total(textbook(plan)) == 3 * 7 * 128 + 2 * 64 * 128 + 3 * 7 * 128
