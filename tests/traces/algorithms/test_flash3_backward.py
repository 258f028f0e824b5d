"""FlashAttention-3 backward: what the tests that every algorithm takes need, and what is particular to it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.traces.gradients import backward_inputs, expected_gradients

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
