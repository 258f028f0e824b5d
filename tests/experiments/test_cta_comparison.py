"""Does a comparison of CTAs point to what was changed, and refuse other launches?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.cta_comparison import PARTS, compare_ctas
from traces.cta_times import CtaTimes

SMS, WAVES, DURATION_NS, GAP_NS = 4, 3, 1000.0, 100.0
NUMBER = np.arange(SMS * WAVES)


def launch(
    starting_ns: float = 0.0,
    duration_ns: float = DURATION_NS,
    gap_ns: float = GAP_NS,
    order: NDArray[np.int64] = NUMBER % SMS,
    ghz: float = 1.8,
) -> CtaTimes:
    """Waves of equal CTAs on a few SMs, of which all but the first start `starting_ns` later."""
    start = starting_ns * (NUMBER % SMS > 0) + NUMBER // SMS * (duration_ns + gap_ns)
    end = start + duration_ns
    return CtaTimes("f", order, start, end, ghz * start, ghz * end)


def test_is_the_same_launch_the_same_whatever_the_clock() -> None:
    (kernel,) = compare_ctas([launch(ghz=1.5)], [launch(ghz=1.5)])
    assert kernel["points_to"] is None and kernel["same_sm"] == kernel["same_sm_first_wave"] == 1
    assert kernel["span_cycles"] == {"measured": 1.5 * 3200, "simulated": 1.5 * 3200}
    assert kernel["clock_ghz"]["measured"] == pytest.approx(1.5)
    assert kernel["duration_p50_cycles"]["simulated"] == pytest.approx(1500)


@pytest.mark.parametrize(
    ("simulated", "points_to"),
    [
        (launch(duration_ns=1100), "duration"),
        (launch(gap_ns=200), "turnover"),
        (launch(duration_ns=1001), None),
    ],
)
def test_does_a_change_point_to_its_cause(simulated: CtaTimes, points_to: str | None) -> None:
    (kernel,) = compare_ctas([launch()], [simulated])
    assert kernel["points_to"] == points_to


def test_does_a_late_start_point_to_skew() -> None:
    (kernel,) = compare_ctas([launch()], [launch(starting_ns=300)])
    assert kernel["starting_cycles"]["simulated"] == pytest.approx(1.8 * 300 * 3 / 4)
    assert kernel["first_starts_cycles"] == {"measured": 0, "simulated": pytest.approx(1.8 * 300)}
    assert kernel["points_to"] == "skew"


def test_does_a_cta_too_many_on_an_sm_point_to_the_order() -> None:
    """SM 0 takes one CTA from SM 3: the others are idle while it ends."""
    moved = launch()
    order, start = moved.sm.copy(), moved.start_ns.copy()
    order[-1], start[-1] = 0, WAVES * (DURATION_NS + GAP_NS)
    end = start + DURATION_NS
    late = replace(moved, sm=order, start_ns=start, end_ns=end, start_clock=1.8 * start, end_clock=1.8 * end)
    (kernel,) = compare_ctas([moved], [late])
    assert kernel["points_to"] == "order" and kernel["same_sm"] == pytest.approx(11 / 12)
    assert kernel["same_sm_first_wave"] == 1


def test_is_another_number_at_a_time_a_question_of_occupancy() -> None:
    (kernel,) = compare_ctas([launch()], [launch(order=NUMBER % SMS // 2)])
    assert kernel["resident"] == {"measured": 1, "simulated": 2} and kernel["points_to"] == "occupancy"


@pytest.mark.parametrize("seed", range(3))
def test_do_the_parts_of_both_sides_add_up(seed: int) -> None:
    random = np.random.default_rng(seed)
    sides = [launch(*random.uniform(1, 2000, 3), random.integers(0, SMS, len(NUMBER))) for _ in range(2)]
    (kernel,) = compare_ctas(sides[:1], sides[1:])
    for side in ("measured", "simulated"):
        total = sum(kernel[f"{part}_cycles"][side] for part in PARTS)
        assert total == pytest.approx(kernel["span_cycles"][side])


def test_are_other_launches_refused() -> None:
    with pytest.raises(ValueError, match="measured are f of 12 CTAs, but simulated g of 12 CTAs, f of 12 CTAs"):
        compare_ctas([launch()], [replace(launch(), kernel="g"), launch()])
