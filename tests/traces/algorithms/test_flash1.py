"""FlashAttention-1: schedules to draw for the tests that every algorithm takes, and what is its own."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

REWRITTEN = ("O_running", "LSE")


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((16, 48, 64)),
            "tile_kv": st.sampled_from((16, 24, 64, 128)),
            "stages": st.integers(1, 3),
            "warps": st.sampled_from((1, 4, 8)),
        }
    )


SCHEDULES = _schedules()
