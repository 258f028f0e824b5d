"""Which SMs get the first CTAs of a grid?"""

from __future__ import annotations

import pytest

from gpusim.errors import UserError
from gpusim.spec import load_gpu


def test_does_a_grid_that_fills_the_gpu_follow_the_cta_order() -> None:
    sm = load_gpu("h200").sm
    assert sm.placement(132) == sm.placement(1000) == list(sm.cta_order)


@pytest.mark.parametrize("ctas", (1, 7, 8, 16, 33, 66, 131))
def test_is_a_smaller_grid_spread_over_gpcs_and_then_over_tpcs(ctas: int) -> None:
    sm = load_gpu("h200").sm
    chosen = sm.placement(ctas)
    assert len(set(chosen)) == len(chosen) == ctas
    counts = [sum(sm.gpc_of_sm[one] == gpc for one in chosen) for gpc in range(sm.gpcs)]
    assert max(counts) - min(counts) <= 1 or ctas > 128  # two GPCs have a TPC more
    tpcs = {one // 2 for one in chosen}
    assert ctas > 64 or len(tpcs) == ctas  # GPCs of 16 SMs have 8 TPCs
    assert [sm.cta_order.index(one) for one in chosen] == sorted(sm.cta_order.index(one) for one in chosen)


def test_do_gpcs_keep_their_size_when_sms_are_added() -> None:
    gpu = load_gpu("h200", ["sm.count=264"])
    assert gpu.sm.gpcs == 16
    sizes = [gpu.sm.gpc_of_sm.count(gpc) for gpc in range(16)]
    assert sum(sizes) == 264 and set(sizes) <= {16, 18}
    assert load_gpu("h200", ["sm.gpcs=4"]).sm.gpc_of_sm.count(0) in (32, 34)


def test_is_a_gpc_without_number_refused() -> None:
    with pytest.raises(UserError, match=r"sm\.gpc_of_sm holds a number outside 0 to 0"):
        load_gpu("h200", ["sm.count=2", "sm.gpcs=1", "sm.gpc_of_sm=[0, 1]"])
