"""The backward pass through global memory: what the tests that every algorithm takes need, and its own."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.traces.gradients import backward_inputs, expected_gradients

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
