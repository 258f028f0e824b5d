"""Do the work items of a plan split the work correctly, and do their closed forms count it?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.problems import accesses, byte_addresses, default_plan, hook, plans, stream, work_items
from traces.algorithms import ALGORITHMS
from traces.analytic import sm_port_bytes
from traces.launch import Plan
from traces.ops import Load, Reduce, Store

SMALL_DIMS = (32, 40, 64)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_is_every_byte_of_every_result_written_exactly_once(algorithm: str, data: st.DataObject) -> None:
    plan: Plan = data.draw(plans(algorithm, longest=90, dims=SMALL_DIMS))
    written = {t.name: np.zeros(t.size_bytes, np.int64) for t in plan.tensors}
    for op, view in accesses(plan):
        if isinstance(op, Store):
            np.add.at(written[view.tensor.name], byte_addresses(op.tile, view) - view.tensor.base, 1)
    for name, counts in written.items():
        if name in hook(algorithm, "REWRITTEN", ()):
            assert np.all(counts > 0), name
        else:
            assert np.all(counts == (name not in plan.inputs)), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_do_closed_forms_equal_the_tiles_that_programs_move(algorithm: str, data: st.DataObject) -> None:
    plan: Plan = data.draw(plans(algorithm))
    moved = {t.name: [0, 0] for t in plan.tensors}
    for op, view in accesses(plan):
        moved[view.tensor.name][isinstance(op, Store | Reduce)] += op.tile.size_bytes
    assert sm_port_bytes(plan) == {name: tuple(counts) for name, counts in moved.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_do_items_of_equal_shape_run_equal_operations_at_other_addresses(algorithm: str, data: st.DataObject) -> None:
    plan: Plan = data.draw(plans(algorithm, longest=60, dims=SMALL_DIMS))
    first: dict[tuple[str, Any], Any] = {}
    for launch, _, item in work_items(plan):
        operations = stream(launch, item)
        tiles = [op.tile for _, op in operations.ops if isinstance(op, Load | Store | Reduce)]
        seen = operations.lines, [tile.span(item.views[tile.matrix.slot]) for tile in tiles]
        assert first.setdefault((launch.name, item.shape_key()), seen) == seen


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_does_every_access_stay_inside_its_tensor(algorithm: str, data: st.DataObject) -> None:
    plan: Plan = data.draw(plans(algorithm, longest=90, dims=SMALL_DIMS))
    for op, view in accesses(plan):
        if op.tile.size_bytes:
            touched = byte_addresses(op.tile, view)
            assert view.tensor.base <= touched.min() <= touched.max() < view.tensor.end


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_does_a_cluster_load_all_shares_of_a_multicast_tile(algorithm: str, data: st.DataObject) -> None:
    """Whoever receives a tile by multicast has partners that ask for the other shares of the very same bytes."""
    plan: Plan = data.draw(plans(algorithm, longest=150, dims=SMALL_DIMS))
    for launch in plan.launches:
        programs: dict[Any, Any] = {}
        for first in range(0, launch.work_count, launch.cluster):
            shares: dict[tuple[int, int, int], Counter[int]] = {}
            for item in (item for rank in range(launch.cluster) for item in launch.work(first + rank)):
                key = item.shape_key()
                programs.setdefault(key, [op for _, op in stream(launch, item).ops if isinstance(op, Load)])
                for op in programs[key]:
                    address = byte_addresses(op.tile, item.views[op.tile.matrix.slot])[0]
                    shares.setdefault((address, op.tile.size_bytes, op.multicast), Counter())[op.share] += 1
            for (_, _, multicast), counts in shares.items():
                assert sorted(counts) == list(range(multicast)) and len(set(counts.values())) == 1


def test_are_causal_blocks_past_the_diagonal_skipped() -> None:
    full, causal = (default_plan("flash2", heads=1, seq=1024, causal=mask) for mask in (False, True))
    assert sm_port_bytes(full)["K"] == (8 * 1024 * 256, 0)
    assert sm_port_bytes(causal)["K"] == (sum(range(128, 1025, 128)) * 256, 0)
