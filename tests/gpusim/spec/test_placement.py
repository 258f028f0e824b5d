"""Which SMs get the first CTAs of a grid?"""

from __future__ import annotations

import pytest

from experiments.measurements import MEASURED
from gpusim.errors import UserError
from gpusim.spec import load_gpu
from kernels_cupy.commented_csv import read_rows


def test_does_a_grid_that_fills_the_gpu_follow_the_cta_order() -> None:
    sm = load_gpu("h200").sm
    assert sm.placement(132) == sm.placement(1000) == list(sm.cta_order)


@pytest.mark.parametrize("ctas", (1, 7, 8, 16, 33, 66, 131))
def test_does_a_smaller_grid_fill_the_first_sms_and_spread_over_gpcs_and_then_tpcs(ctas: int) -> None:
    sm = load_gpu("h200").sm
    chosen = sm.placement(ctas)
    assert len(set(chosen)) == len(chosen) == ctas
    first, rest = [[one for one in chosen if (one in sm.cta_order[:8]) == early] for early in (True, False)]
    assert len(first) == min(ctas, 8)
    counts = [sum(sm.gpc_of_sm[one] == gpc for one in rest) for gpc in range(1, sm.gpcs)]
    assert max(counts) - min(counts) <= 1 or ctas > 128  # two GPCs have a TPC more
    assert ctas > 64 or len({one // 2 for one in rest}) == len(rest)  # GPCs of 16 SMs have 8 TPCs
    assert [sm.cta_order.index(one) for one in chosen] == sorted(sm.cta_order.index(one) for one in chosen)


def test_are_small_grids_on_the_sms_where_the_card_puts_them() -> None:
    rows = [row for row in read_rows(MEASURED / "h200" / "sm_bandwidth.csv") if row["sm_of_cta"]]
    grids = [[int(sm) for sm in row["sm_of_cta"].split()] for row in rows]
    small = [grid for grid in grids if len(grid) < 132]
    assert {len(grid) for grid in small} == {1, 2, 4, 8, 16, 33, 66, 99}
    sm = load_gpu("h200").sm
    for grid in small:
        assert set(sm.placement(len(grid))) == set(grid), len(grid)


def test_do_gpcs_keep_their_size_when_sms_are_added() -> None:
    gpu = load_gpu("h200", ["sm.count=264"])
    assert gpu.sm.gpcs == 16
    sizes = [gpu.sm.gpc_of_sm.count(gpc) for gpc in range(16)]
    assert sum(sizes) == 264 and set(sizes) <= {16, 18}
    assert load_gpu("h200", ["sm.gpcs=4"]).sm.gpc_of_sm.count(0) in (32, 34)


def test_is_a_gpc_without_number_refused() -> None:
    with pytest.raises(UserError, match=r"sm\.gpc_of_sm holds a number outside 0 to 0"):
        load_gpu("h200", ["sm.count=2", "sm.gpcs=1", "sm.gpc_of_sm=[0, 1]"])
