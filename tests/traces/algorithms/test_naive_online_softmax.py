"""Three kernels with the online softmax: schedules to draw, and when the scores are read twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.traces.algorithms.test_naive import three_kernel_schedules
from tests.traces.problems import default_plan
from traces.algorithms import algorithm
from traces.analytic import analytic, sm_port_bytes
from traces.problem import AttentionProblem
from traces.softmax import online_scores, probabilities
from traces.three_kernels import FEATURES

SCHEDULES = three_kernel_schedules(softmax_tile=st.sampled_from((8, 40, 64, 4096)), softmax_resident=st.booleans())

__all__ = ["FEATURES", "SCHEDULES"]


def test_is_the_sum_of_1_2_and_3_1_known() -> None:
    """By hand: the sum is 1 + e^-1 after [1, 2], and (1 + e^-1) e^-1 + 1 + e^-2 = 1.638… after [3, 1]."""
    maximum, total = np.full((1, 1), -np.inf, np.float32), np.zeros((1, 1), np.float32)
    _, maximum, total, _ = online_scores(np.array([[1, 2]], np.float32), maximum, total)
    assert (maximum.item(), total.item()) == (2, pytest.approx(1 + np.exp(-1), rel=1e-6))
    _, maximum, total, decay = online_scores(np.array([[3, 1]], np.float32), maximum, total)
    assert (maximum.item(), total.item()) == (3, pytest.approx(1 + np.exp(-1) + 2 * np.exp(-2), rel=1e-6))
    assert int(1000 * total.item()) == 1638
    assert decay.item() == pytest.approx(np.exp(-1), rel=1e-6)
    weights = probabilities(np.array([[1, 2, 3, 1]], np.float32), maximum, total)
    assert weights.sum() == pytest.approx(1, rel=1e-6) and weights[0, 2] == pytest.approx(1 / total.item(), rel=1e-6)


@pytest.mark.parametrize(
    "seq_kv, dtype, resident", [(24576, "fp16", True), (24577, "fp16", False), (24576, "fp32", False)]
)
def test_does_a_row_of_48_kib_stay_on_chip(seq_kv: int, dtype: str, resident: bool) -> None:
    plan = default_plan("naive_online_softmax", heads=1, seq=128, seq_kv=seq_kv, dtype=dtype)
    size = plan.tensor("S").size_bytes
    assert plan.schedule.softmax_resident == resident
    assert sm_port_bytes(plan)["S"] == (size if resident else 2 * size, size)
    assert plan.launches[1].resources.shared_bytes > 48 << 10 or not resident


@pytest.mark.parametrize("resident, factor", [("true", 8), ("false", 10)])
def test_are_hbm_bytes_8nn_or_10nn_plus_6nd(resident: str, factor: int) -> None:
    module, p = algorithm("naive_online_softmax"), AttentionProblem(heads=1, seq=4096)
    changes: dict[str, Any] = {"softmax_resident": resident}
    plan = module.plan(p, module.default_schedule(p, "wgmma", 132).changed(changes))
    assert analytic(plan)["hbm_bytes"] == factor * 4096**2 + 6 * 4096 * 128
