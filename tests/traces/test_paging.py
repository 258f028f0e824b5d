"""Are block tables what a paged cache needs, and wrong ones refused?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.paging import BlockTable, block_table
from traces.problem import AttentionProblem


@given(seed=st.integers(0, 1 << 20), length=st.integers(1, 400), page_size=st.integers(1, 64))
@settings(deadline=None)
def test_are_pages_in_a_random_order_that_the_seed_repeats(seed: int, length: int, page_size: int) -> None:
    p = AttentionProblem(batch=2, heads=1, seq=1, seq_kv=length, page_size=page_size)
    table = block_table(p, seed)
    assert table == block_table(p, seed)
    assert sorted(page for pages in table.pages for page in pages) == list(range(table.page_count))


def test_are_pages_not_in_order() -> None:
    p = AttentionProblem(batch=2, heads=1, seq=1, seq_kv=4096, page_size=16)
    table = block_table(p)
    assert table != block_table(p, 1)
    assert np.mean(np.diff(table.pages[0]) == 1) < 0.05


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"pages": ((0, 4), (1,))}, "block table of sequence 0 names page 4, but there are 4 pages"),
        ({"pages": ((0, 2), (-1,))}, "block table of sequence 1 names page -1"),
        ({"lengths": (33, 9)}, "sequence 0 has 33 tokens, but its block table has 2 pages of 16"),
        ({"lengths": (3,)}, "block table has 2 sequences but there are 1 lengths"),
        ({"page_size": 0}, "page_size must be at least 1, not 0"),
    ],
)
def test_is_a_block_table_that_leads_outside_refused(wrong: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"page_size": 16, "page_count": 4, "lengths": (32, 9), "pages": ((0, 2), (1,))}
    BlockTable(**right)
    with pytest.raises(ValueError, match=said):
        BlockTable(**right | wrong)
