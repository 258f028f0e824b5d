"""Do query blocks cover every row of every sequence, in the order asked for, with the keys that they need?"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.problems import default_plan, problems, visible
from traces.problem import AttentionProblem
from traces.query_blocks import CTA_ORDERS, FEATURES, QueryBlocks, attended_keys, cta_position, heads_per_section


@given(shape=st.tuples(*[st.integers(1, 4)] * 4), order=st.sampled_from(CTA_ORDERS), section=st.integers(1, 20))
def test_does_every_order_visit_each_block_of_each_head_once(shape: Any, order: str, section: int) -> None:
    batch, heads, q_blocks, splits = shape
    visited = [cta_position(cta, *shape, order, section) for cta in range(batch * heads * q_blocks * splits)]
    assert sorted(visited) == list(product(*map(range, (batch, heads, q_blocks, splits))))


def test_are_orders_what_their_names_say() -> None:
    def order(name: str, splits: int = 1, section: int = 2) -> list[tuple[int, ...]]:
        """(sequence, head, block) or, with splits, (…, split) of 2 sequences of 3 heads with 2 blocks each."""
        positions = (cta_position(cta, 2, 3, 2, splits, name, section) for cta in range(12 * splits))
        return [position if splits > 1 else position[:3] for position in positions]

    assert order("m_fastest")[:5] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 0)]
    assert order("m_fastest", splits=2)[:5] == [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 0)]
    assert order("head_fastest")[:4] == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0)]
    assert order("longest_first") == [(b, h, block) for block in (1, 0) for b in (0, 1) for h in (0, 1, 2)]
    sections = [((0, 0), (0, 1)), ((0, 2), (1, 0)), ((1, 1), (1, 2))]
    assert order("swizzled") == [(*head, block) for section in sections for block in (1, 0) for head in section]
    uneven = [((0, 0), (0, 1), (0, 2), (1, 0)), ((1, 1), (1, 2))]
    assert order("swizzled", section=4) == [(*head, block) for part in uneven for block in (1, 0) for head in part]


@pytest.mark.parametrize(
    "problem, heads",
    [
        ({"seq": 8192, "dim": 128}, 8),  # 4 MiB per head in 32 MiB
        ({"seq": 8192, "dim": 128, "heads": 32, "kv_heads": 8}, 32),  # 8 KV heads of 4
        ({"seq": 6000, "dim": 128}, 8),  # 10.9 fit: a power of two
        ({"seq": 1 << 20, "dim": 128}, 1),
    ],
)
def test_do_sections_fit_in_32_mib(problem: dict[str, Any], heads: int) -> None:
    assert heads_per_section(AttentionProblem(**problem)) == heads


@given(
    p=problems(longest=90, dims=(32,), features=FEATURES),
    tile_q=st.sampled_from((1, 16, 48)),
    tile_kv=st.sampled_from((8, 24, 64)),
    splits=st.integers(1, 5),
)
def test_do_blocks_attend_to_the_steps_that_any_row_sees(
    p: AttentionProblem, tile_q: int, tile_kv: int, splits: int
) -> None:
    for b in range(p.batch):
        seen = visible(p.rows(b), p.keys(b), p.causal, p.window)
        for row in range(0, p.rows(b), tile_q):
            parts = [attended_keys(p, b, row, tile_q, tile_kv, split, splits) for split in range(splits)]
            attended = [key for first, last in parts for key in range(first, last)]
            needed = np.flatnonzero(seen[row : row + tile_q].any(axis=0))
            first = needed[0] // tile_kv * tile_kv if len(needed) else 0
            assert attended == (list(range(first, needed[-1] + 1)) if len(needed) else [])
            assert all(first % tile_kv == 0 for first, _ in parts)


def test_has_a_cta_past_the_end_of_its_sequence_no_work() -> None:
    p = AttentionProblem(heads=2, lengths=(40, 0, 16), dim=32)
    grid = QueryBlocks(p, tile_q=16, tile_kv=16, cta_order="m_fastest", kv_order="forward")
    assert len(grid) == 3 * 2 * 3
    rows = [[item.views[0].row for item in grid.items(cta)] for cta in range(9)]
    assert rows == [[0], [16], [32], [], [], [], [40], [], []]  # sequences of head 0 in a packed Q of 56 rows
    assert [t.rows for t in grid.tensors] == [56, 56, 56, 56, 1]


def test_do_distant_blocks_of_a_window_run_one_program() -> None:
    plan = default_plan("flash2", heads=1, seq=65536, causal=True, window=4096)
    programs = {item.shape_key() for cta in range(plan.launches[0].ctas) for item in plan.launches[0].work(cta)}
    assert len(programs) == 4096 // 128 + 1
