"""Paged decoding: what the common tests draw, and what is its own."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.traces.decoding import cache_inputs, decode_problems, expected_outputs
from tests.traces.problems import accesses, assert_within, byte_addresses, stream
from traces import decoding, numeric
from traces.algorithms import paged_decode
from traces.algorithms.paged_decode import VARIANTS
from traces.analytic import sm_port_bytes, textbook
from traces.launch import Plan
from traces.ops import Arrive, Await, Load
from traces.paging import block_table
from traces.problem import AttentionProblem

SCHEDULES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(VARIANTS),
        "tile_q": st.sampled_from((16, 32, 64)),
        "tile_kv": st.sampled_from((16, 24, 64, 128)),
        "stages": st.integers(1, 3),
        "warps": st.sampled_from((2, 4, 8)),
        "dequantise": st.sampled_from(("shared", "registers")),
        "splits": st.sampled_from((0, 0, 1, 3, 40)),
        "cta_slots": st.integers(1, 40),
        "combine_loads": st.integers(1, 16),
        "partition": st.sampled_from((16, 64, 512)),
        "seed": st.integers(0, 3),
    }
)
FEATURES = decoding.FEATURES
problems_of, inputs_of, expected_of = partial(decode_problems, paged=True), cache_inputs, expected_outputs


def paged_plan(variant: str = "packed", schedule: dict[str, Any] | None = None, **problem: Any) -> Plan:
    shape = AttentionProblem(**problem)
    changes = {"variant": variant, **(schedule or {})}
    return paged_decode.plan(shape, paged_decode.default_schedule(shape, "wgmma", 132).changed(changes))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_is_nothing_read_past_the_length_of_a_sequence(variant: str, page_size: int) -> None:
    """Unused page tails, and all of an unused page, hold NaN."""
    plan = paged_plan(variant, heads=7, kv_heads=1, seq=2, kv_lengths=(700, 0, 1, 257), page_size=page_size, dim=64)
    inputs = cache_inputs(plan, 5)
    assert page_size == 1 or np.isnan(inputs["K"]).any()
    outputs, right = numeric.run(plan, inputs, round_storage=False), expected_outputs(plan, inputs)
    for name in plan.outputs:
        assert_within(outputs[name], *right[name])
    assert np.all(outputs["O"][:, :, 2:4] == 0) and np.all(np.isneginf(outputs["LSE"][..., 2:4]))


@pytest.mark.parametrize("variant, times", [("v1", 7), ("v2", 7), ("packed", 1)])
def test_is_the_cache_read_once_per_query_head_or_once_when_packed(variant: str, times: int) -> None:
    plan = paged_plan(variant, batch=2, heads=14, kv_heads=2, seq=1, seq_kv=1000, page_size=8)
    assert textbook(plan)["V"] == (2 * 2 * 1000 * 256, 0)
    assert sm_port_bytes(plan)["V"] == (times * 2 * 2 * 1000 * 256, 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_are_the_entries_of_the_block_table_loaded_by_every_cta(variant: str) -> None:
    plan = paged_plan(variant, {"splits": 1}, heads=8, kv_heads=2, seq=1, kv_lengths=(100, 33), page_size=16)
    ctas_per_sequence = 2 if variant == "packed" else 8
    assert sm_port_bytes(plan)["block_table"] == (4 * ctas_per_sequence * (7 + 3), 0)


def test_does_v2_leave_maximum_sum_and_output_of_every_512_tokens() -> None:
    plan = paged_plan("v2", batch=3, heads=8, kv_heads=2, seq=1, seq_kv=1025, page_size=16)
    assert [launch.ctas for launch in plan.launches] == [3 * 8 * 3, 3 * 8]
    moved = sm_port_bytes(plan)
    assert moved["O_partial"] == (3 * 8 * 3 * 512, 3 * 8 * 3 * 512)
    assert moved["max_partial"] == moved["sum_partial"] == (3 * 8 * 3 * 4, 3 * 8 * 3 * 4)
    assert len(paged_plan("v2", heads=8, seq=1, seq_kv=512, page_size=16).launches) == 1


def test_do_all_sequences_read_the_same_pages_of_their_prefix() -> None:
    """Of 50 tokens, 3 pages of 16 are whole; the fourth is each sequence's own."""
    plan = paged_plan(batch=4, heads=2, kv_heads=1, seq=1, seq_kv=200, page_size=16, prefix=50, dim=64)
    table = block_table(plan.problem)
    assert len({pages[:3] for pages in table.pages}) == 1
    assert len({page for pages in table.pages for page in pages}) == table.page_count == 3 + 4 * (13 - 3)
    touched = np.zeros(plan.tensor("K").size_bytes, np.int64)
    for op, view in accesses(plan):
        if view.tensor.name == "K":
            np.add.at(touched, byte_addresses(op.tile, view) - view.tensor.base, 1)
    by_page = touched.reshape(table.page_count, -1)
    assert np.all(by_page[list(table.pages[0][:3])] == 4)
    assert np.all(by_page[list(table.pages[1][3:12])] == 1)
    assert by_page[table.pages[2][12]].tolist() == [1] * (8 * 128) + [0] * (8 * 128)


def test_has_a_problem_without_pages_pages_of_16() -> None:
    assert paged_plan(heads=1, seq=1, seq_kv=100).problem.page_size == 16


def test_is_an_unknown_variant_refused() -> None:
    with pytest.raises(ValueError, match="variant is 'v3', not one of v1, v2, packed"):
        paged_plan("v3", heads=1, seq=1)


def test_does_every_group_of_warps_have_the_block_table_before_it_copies_keys() -> None:
    plan = paged_plan(
        schedule={"warps": 8, "tile_kv": 128, "dequantise": "registers"},
        heads=8,
        kv_heads=1,
        seq=1,
        kv_lengths=(512,),
        page_size=16,
        dim=64,
    )
    launch = plan.launches[0]
    (item,) = launch.work(0)
    first, other = ([op for agent, op in stream(launch, item).ops if agent == number] for number in (0, 1))
    before = list(takewhile(lambda op: not (isinstance(op, Load) and op.tile.matrix.name == "K"), other))
    (awaited,) = (op.barrier for op in before if isinstance(op, Await))
    assert awaited.name == "block table"
    assert next(op for op in first if isinstance(op, Arrive)).barrier == awaited
