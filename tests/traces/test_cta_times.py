"""Is the time of a launch divided right into what its places spend it on?"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.cta_times import CtaTimes


def times(*ctas: tuple[int, float, float], ghz: float = 2.0) -> CtaTimes:
    """CTAs given as (SM, start, end) in ns; the clock of SM n begins at 1000 n."""
    sm, start, end = (np.array(column) for column in zip(*ctas, strict=True))
    return CtaTimes("f", sm.astype(np.int64), start, end, ghz * start + 1000 * sm, ghz * end + 1000 * sm)


# Two places on SM 5, one on SM 7; its second CTA starts when the first has just ended.
EXAMPLE = times((5, 0.0, 10.0), (7, 2.0, 11.0), (5, 1.0, 4.0), (5, 6.0, 12.0), (7, 11.0, 20.0))


def test_are_ctas_in_the_places_that_were_free() -> None:
    assert EXAMPLE.place.tolist() == [0, 0, 1, 1, 0] and EXAMPLE.resident == 2
    assert EXAMPLE.first_wave.tolist() == [True, True, True, False, False]
    assert EXAMPLE.ctas_per_sm(8).tolist() == [0, 0, 0, 0, 0, 3, 0, 2]


def test_is_the_time_divided_by_hand() -> None:
    parts = EXAMPLE.parts
    assert parts.starting == pytest.approx((0 + 2 + 1) / 3)
    assert parts.running == pytest.approx((10 + 9 + 3 + 6 + 9) / 3)
    assert parts.between == pytest.approx(2 / 3)
    assert parts.ending == pytest.approx((10 + 8 + 0) / 3)


def test_is_the_clock_that_of_the_ctas() -> None:
    assert EXAMPLE.clock_ghz == pytest.approx(2) and EXAMPLE.duration_cycles.tolist() == [20, 18, 6, 12, 18]
    assert np.isnan(times((0, 0.0, 0.0)).clock_ghz)


@st.composite
def launches(draw: st.DrawFn) -> tuple[CtaTimes, int]:
    """CTAs that a machine of a few SMs and places ran, in any order, and its places per SM."""
    sms, places = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    free = {(sm, place): draw(st.integers(0, 5)) for sm in range(sms) for place in range(places)}
    ctas = []
    for _ in range(draw(st.integers(1, 30))):
        where = draw(st.sampled_from(sorted(free)))
        start = free[where] + draw(st.integers(0, 3))
        free[where] = start + draw(st.integers(1, 9))
        ctas.append((where[0], float(start), float(free[where])))
    first = min(start for _, start, _ in ctas)
    return times(*((sm, start - first, end - first) for sm, start, end in draw(st.permutations(ctas)))), places


@given(launches())
def test_do_the_parts_add_up_and_no_place_hold_two(case: tuple[CtaTimes, int]) -> None:
    run, places = case
    assert run.resident <= places
    assert sum(astuple(run.parts)) == pytest.approx(run.span_ns)
    assert all(part >= -1e-9 for part in astuple(run.parts))
    for sm in set(run.sm.tolist()):
        for place in range(places):
            own = np.flatnonzero((run.sm == sm) & (run.place == place))
            own = own[np.argsort(run.start_ns[own])]
            assert np.all(run.start_ns[own][1:] >= run.end_ns[own][:-1])
            assert run.first_wave[own].sum() == bool(len(own))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [([(0, 5.0, 9.0), (0, 9.0, 8.0)], "CTA 1 of kernel f ends before it starts"), ([], "kernel f has no CTA")],
)
def test_are_impossible_times_refused(wrong: list[Any], message: str) -> None:
    empty = np.zeros(0)
    with pytest.raises(ValueError, match=message):
        times(*wrong) if wrong else CtaTimes("f", empty.astype(np.int64), empty, empty, empty, empty)
