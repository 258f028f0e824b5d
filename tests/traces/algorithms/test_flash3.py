"""FlashAttention-3: schedules to draw, for the tests that every algorithm takes; clusters, turns and FP8."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.traces.problems import Arrays, normal_inputs
from traces.launch import Plan
from traces.query_blocks import CTA_ORDERS, FEATURES
from traces.schedule import KV_ORDERS


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((64, 128, 192)),
            "tile_kv": st.sampled_from((16, 24, 80, 128)),
            "stages": st.integers(1, 3),
            "kv_order": st.sampled_from(KV_ORDERS),
            "cta_order": st.sampled_from(CTA_ORDERS),
            "section_heads": st.integers(0, 3),
            "overlap": st.booleans(),
            "ping_pong": st.booleans(),
            "p_in_shared": st.booleans(),
            "persistent_ctas": st.integers(1, 9),
        }
    )


SCHEDULES = _schedules()

__all__ = ["FEATURES", "SCHEDULES"]


def inputs_of(plan: Plan, seed: int) -> Arrays:
    """Normal numbers; the scales of an FP8 problem are positive."""
    inputs = normal_inputs(plan, seed)
    return {name: np.exp(x / 4) if name.endswith("_scale") else x for name, x in inputs.items()}
