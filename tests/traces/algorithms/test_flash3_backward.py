"""FlashAttention-3 backward: what the tests that every algorithm takes need, and what is particular to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.traces.gradients import backward_inputs, expected_gradients
from tests.traces.problems import default_plan
from traces.analytic import sm_port_bytes

FEATURES = ("dim_v",)
inputs_of = backward_inputs
expected_of = expected_gradients


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((16, 40, 64, 128)),
            "tile_kv": st.sampled_from((48, 96, 144)),
            "warpgroups": st.integers(1, 3),
            "stages": st.integers(1, 3),
            "row_tile": st.integers(1, 130),
        }
    )


SCHEDULES = _schedules()


@pytest.mark.parametrize(
    ("dim", "causal", "tiles"),
    [(64, False, (128, 128, 2)), (128, False, (80, 128, 2)), (128, True, (64, 128, 2)), (192, False, (64, 96, 3))],
)
def test_are_default_tiles_the_releases(dim: int, causal: bool, tiles: tuple[int, int, int]) -> None:
    schedule = default_plan("flash3_backward", heads=1, seq=64, dim=dim, causal=causal).schedule
    assert (schedule.tile_q, schedule.tile_kv, schedule.warpgroups) == tiles


@pytest.mark.parametrize("dim", (64, 128, 192, 256))
def test_do_default_tiles_fit_an_h200(dim: int) -> None:
    for causal in (False, True):
        plan = default_plan("flash3_backward", heads=1, seq=64, dim=dim, causal=causal)
        assert max(k.resources.shared_bytes for k in plan.launches) <= 232448


def test_do_query_heads_of_a_group_add_up_their_dk_and_dv() -> None:
    plan = default_plan("flash3_backward", heads=4, kv_heads=2, seq=512, dim=64)
    sums = sm_port_bytes(plan)["dK_sum"]
    assert sums == (2 * 512 * 64 * 4, 3 * 2 * 512 * 64 * 4)  # read once; cleared, and added to by two heads each
