"""The backward pass through global memory: what the tests that every algorithm takes need, and its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.traces.gradients import backward_inputs, expected_gradients
from tests.traces.problems import default_plan
from traces.algorithms import ALGORITHMS
from traces.algorithms.naive_backward import NaiveBackwardSchedule
from traces.analytic import textbook, total

FEATURES = ("dim_v",)
inputs_of = backward_inputs
expected_of = expected_gradients


@st.composite
def _tilings(draw: st.DrawFn) -> str:
    size, cluster = st.sampled_from((16, 40, 64, 128)), st.integers(1, 2)
    shape = "x".join(str(draw(size)) for _ in range(3)) + f"x{draw(st.integers(1, 4))}"
    raster, swizzle = draw(st.sampled_from(("along_m", "along_n"))), draw(st.integers(0, 3))
    return f"{shape}/{draw(cluster)}x{draw(cluster)}/{raster}/{swizzle}"


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    tilings = {key: _tilings() for key in ("qk", "dv", "dp", "dk", "dq")}
    rest = {"saved": st.sampled_from(("p", "none")), "fuse": st.booleans(), "persistent": st.booleans()}
    rows = {"persistent_ctas": st.integers(1, 9), "softmax_rows": st.integers(1, 5)}
    return st.fixed_dictionaries(tilings | rest | rows | {"multiply_elements": st.integers(16, 300)})


SCHEDULES = _schedules()


def test_is_the_textbook_form_14nn_plus_16nd_and_6nn_more_without_p() -> None:
    n, d = 4096, 128
    plan = default_plan("naive_backward", heads=1, seq=n, dim=d)
    assert total(textbook(plan)) == 14 * n * n + 16 * n * d
    again = ALGORITHMS["naive_backward"].plan(plan.problem, plan.schedule.changed({"saved": "none"}))
    assert total(textbook(again)) == 20 * n * n + 20 * n * d
    assert again.inputs == ("Q", "K", "V", "dO") and [k.name for k in again.launches[:2]] == ["qk", "softmax"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("128x128x64", "not like 256x128x64x4/2x1/along_n"),
        ("128x128x64x4/2", "not like 256x128x64x4/2x1/along_n"),
        ("128x128x64x4/1x1/across", "not like 256x128x64x4/2x1/along_n/16"),
        ("128x128x64x4/1x1/along_m/0/1", "not like 256x128x64x4/2x1/along_n/16"),
        ("128x100x64x4", "needs a tile of multiples of 8 and 1 to 32 stages"),
        ("128x128x64x0", "needs a tile of multiples of 8 and 1 to 32 stages"),
        ("128x128x64x4/0x1", "needs clusters of 1 to 16 CTAs each way"),
    ],
)
def test_is_a_tiling_that_cannot_be_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"schedule key dq (is )?'{text}'.*{sentence}"):
        NaiveBackwardSchedule(dq=text)
