"""FlashAttention-2: schedules to draw, for the tests that every algorithm takes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from traces import query_blocks
from traces.query_blocks import CTA_ORDERS
from traces.schedule import KV_ORDERS


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((16, 48, 64, 128)),
            "tile_kv": st.sampled_from((16, 24, 64, 128)),
            "stages": st.integers(1, 3),
            "kv_order": st.sampled_from(KV_ORDERS),
            "cta_order": st.sampled_from(CTA_ORDERS),
            "section_heads": st.integers(0, 4),
            "splits": st.sampled_from((0, 1, 1, 2, 3, 7)),
            "cta_slots": st.integers(1, 40),
        }
    )


SCHEDULES = _schedules()
FEATURES = (*query_blocks.FEATURES, "quantised_kv")
