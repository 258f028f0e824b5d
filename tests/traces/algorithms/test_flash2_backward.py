"""FlashAttention-2 backward: what the tests that every algorithm takes need, and what is particular to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.traces.gradients import backward_inputs, expected_gradients
from tests.traces.problems import default_plan
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.analytic import sm_port_bytes
from traces.dtypes import DTYPES
from traces.ops import Reduce
from traces.tensor import Matrix

FEATURES = ("dim_v",)
inputs_of = backward_inputs
expected_of = expected_gradients


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((16, 48, 64, 128)),
            "tile_kv": st.sampled_from((16, 24, 64, 128)),
            "row_tile": st.integers(1, 130),
        }
    )


SCHEDULES = _schedules()


@pytest.mark.parametrize("algorithm", ["naive_backward", "flash2_backward", "flash3_backward"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_are_gradients_of_rows_that_see_no_key_zero_and_never_nan(algorithm: str, layout: str) -> None:
    plan = default_plan(algorithm, heads=4, kv_heads=2, seq=300, seq_kv=70, dim=64, causal=True, layout=layout)
    outputs = numeric.run(plan, backward_inputs(plan, 1))
    assert np.all(outputs["dQ"][:, :, :230] == 0)
    assert all(np.all(np.isfinite(x)) for x in outputs.values())
    assert np.all(np.any(outputs["dV"] != 0, axis=3))


@pytest.mark.parametrize("algorithm", ["naive_backward", "flash2_backward", "flash3_backward"])
def test_does_storage_rounding_cost_about_what_the_format_costs(algorithm: str) -> None:
    """The naive kernels also round P, dP and dS in memory; FlashAttention only what goes in and comes out."""
    plan = default_plan(algorithm, heads=1, seq=130, seq_kv=257, dim=64)
    inputs = {name: plan.tensor(name).dtype.round(x) for name, x in backward_inputs(plan, 2).items()}
    outputs, right = numeric.run(plan, inputs), expected_gradients(plan, inputs)
    for name in plan.outputs:
        error = np.abs(outputs[name] - right[name][0]).max() / np.abs(right[name][0]).max()
        assert 2.0**-16 < error < 2.0**-9, name


def test_are_additions_to_memory_that_nobody_cleared_nan() -> None:
    plan = default_plan("flash2_backward", heads=1, seq=64, dim=32)
    careless = replace(plan, launches=plan.launches[1:], inputs=(*plan.inputs, "D"))
    inputs = backward_inputs(plan, 1) | {"D": np.zeros((1, 1, 1, 64), np.float32)}
    outputs = numeric.run(careless, inputs)
    assert np.all(np.isnan(outputs["dQ"])) and not np.isnan(outputs["dK"]).any()


def test_are_additions_to_other_formats_than_fp32_refused() -> None:
    tile = Matrix(0, "dQ", 8, 8, DTYPES["fp16"]).tile(0, 8)
    with pytest.raises(ValueError, match="reductions add fp32 numbers, but dQ is fp16"):
        Reduce(tile, None)


@pytest.mark.parametrize(("algorithm", "kernels"), [("flash2_backward", 5), ("flash3_backward", 7)])
def test_do_grouped_queries_take_more_kernels_and_single_ones_none(algorithm: str, kernels: int) -> None:
    assert len(default_plan(algorithm, heads=4, seq=64).launches) == 3
    assert len(default_plan(algorithm, heads=4, kv_heads=2, seq=64).launches) == kernels


def test_are_causal_query_blocks_before_the_diagonal_skipped() -> None:
    full, causal = (default_plan("flash2_backward", heads=1, seq=1024, causal=mask) for mask in (False, True))
    assert sm_port_bytes(full)["dQ_sum"][1] == (1 + 8) * 1024 * 512
    assert sm_port_bytes(causal)["dQ_sum"][1] == (1024 + sum(range(128, 1025, 128))) * 512


@pytest.mark.parametrize(("dim", "tiles"), [(64, (128, 128)), (128, (64, 128)), (192, (64, 64)), (256, (64, 64))])
def test_are_default_tiles_the_releases(dim: int, tiles: tuple[int, int]) -> None:
    schedule = default_plan("flash2_backward", heads=1, seq=64, dim=dim).schedule
    assert (schedule.tile_q, schedule.tile_kv) == tiles


@pytest.mark.parametrize(("tile_kv", "exchanged"), [(128, 1), (64, 2)])
def test_is_p_in_shared_memory_where_warps_share_keys(tile_kv: int, exchanged: int) -> None:
    """Eight warps have 16 of 128 keys each, whose P stays with them; of 64 keys each has half of the queries only."""
    plan = default_plan("flash2_backward", heads=1, seq=64, dim=192, dim_v=128)
    schedule = plan.schedule.changed({"instruction": "wgmma", "tile_q": 64, "tile_kv": tile_kv})
    plan = ALGORITHMS["flash2_backward"].plan(plan.problem, schedule)
    rows = (tile_kv + 2 * 64) * (192 + 128) * 2
    scores, row_numbers = exchanged * 64 * tile_kv * 2, 2 * 2 * 64 * 4
    assert plan.launches[1].resources.shared_bytes == rows + scores + row_numbers
