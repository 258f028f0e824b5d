"""Is split-KV chosen by the release's rule, and merged without a NaN?"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.problems import stream
from traces.algorithms import algorithm
from traces.combine import ROUND, Partials, choose_splits, merge_weights
from traces.dtypes import DTYPES
from traces.launch import KernelLaunch
from traces.ops import Load, Wait
from traces.problem import AttentionProblem
from traces.tensor import TensorTable


@pytest.mark.parametrize(
    "ctas, slots, kv_blocks, splits",
    [
        (48, 108, 1000, 2),  # the example in the release: 2 splits fill 89 % of a wave, 3 only 67 % of two
        (87, 108, 1000, 1),  # above 80 % of the slots
        (1, 264, 64, 64),  # never more splits than blocks
        (1, 264, 1000, 112),  # 128 at most; 112 is the first within 85 % that gives each split fewer blocks than 111
        (264, 264, 1, 1),
        (1, 264, 0, 1),
    ],
)
def test_are_splits_the_fewest_within_85_percent_of_the_best_wave(
    ctas: int, slots: int, kv_blocks: int, splits: int
) -> None:
    assert choose_splits(ctas, slots, kv_blocks) == splits


def test_are_splits_chosen_only_where_query_blocks_do_not_fill_the_gpu() -> None:
    module = algorithm("flash2")

    def kernels(**problem: int) -> dict[str, int]:
        p = AttentionProblem(**problem)
        schedule = module.default_schedule(p, "mma_sync", 132)
        return {launch.name: launch.ctas for launch in module.plan(p, schedule.changed({"splits": 0})).launches}

    assert kernels(heads=8, seq=4096) == {"flash2_forward": 256}
    assert kernels(heads=8, seq=128, seq_kv=8192) == {"flash2_forward": 8 * 32, "combine": 8 * 32}


@given(
    lses=st.lists(
        st.lists(st.one_of(st.just(-np.inf), st.floats(-1e4, 1e4, width=32)), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    )
)
def test_do_weights_add_up_to_one_or_to_nothing(lses: list[list[float]]) -> None:
    parts = np.array(lses, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights, lse = merge_weights(parts)
    empty = np.isneginf(parts).all(axis=0)
    assert np.array_equal(np.isneginf(lse), empty) and not np.isnan(lse).any()
    assert np.allclose(weights.sum(axis=0), np.where(empty, 0, 1), rtol=1e-6)
    assert np.all(weights[np.isneginf(parts)] == 0)
    right = np.logaddexp.reduce(parts.astype(float), axis=0)[~empty]
    assert np.all(np.abs(lse[~empty] - right) <= 2.0**-22 * (1 + np.abs(right)))


def under_way(launch: KernelLaunch) -> list[int]:
    """How many tiles of O are under way whenever the first CTA waits for one; its first wait is for the LSEs."""
    (item,) = launch.work(0)
    counts, now = [], 0
    for _, op in stream(launch, item).ops:
        if isinstance(op, Load) and op.tile.matrix.slot == 0:
            now += 1
        elif isinstance(op, Wait):
            counts.append(now)
            now -= len(counts) > 1
    return counts[1:]


@pytest.mark.parametrize("in_flight, splits", [(1, 5), (2, ROUND), (2, ROUND + 3), (4, 3), (4, 2 * ROUND + 1)])
def test_are_partial_tiles_under_way_in_whole_rounds_and_what_is_left_over_one_by_one(
    in_flight: int, splits: int
) -> None:
    table = TensorTable()
    o = table.add("O", (1, 4, 1, 128), DTYPES["fp16"])
    counts = under_way(Partials.allocate(table, o, splits).combine(o, in_flight=in_flight))
    whole = splits - splits % ROUND if in_flight > 1 else 0
    assert counts[whole:] == [1] * (splits - whole)
    assert all(1 <= n <= in_flight for n in counts[:whole])
    assert counts[: max(0, whole - in_flight)] == [in_flight] * max(0, whole - in_flight)


def test_are_rounds_half_as_long_where_a_thread_has_several_columns() -> None:
    table = TensorTable()
    o = table.add("O", (1, 4, 1, 256), DTYPES["fp16"])  # two groups of columns, one after the other
    half = ROUND // 2
    counts = under_way(Partials.allocate(table, o, half).combine(o, in_flight=3))
    assert len(counts) == 2 * half and counts[: 2 * half - 3] == [3] * (2 * half - 3)
