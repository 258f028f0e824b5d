"""Do the warps of the kernels on rows share their rows, and load what is loaded together?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traces.gradients import CONVERT_ROUNDS, ROW_WARPS, SUM_ROUNDS, RowWarps, rounds


@given(rows=st.integers(1, 300), at_once=st.integers(0, 64))
def test_takes_every_row_one_warp_in_one_pass(rows: int, at_once: int) -> None:
    count = ROW_WARPS if at_once else 1
    passes = [RowWarps(number, count, at_once).passes(rows) for number in range(count)]
    taken = sorted(row for own in passes for first, length in own for row in range(first, first + length))
    assert taken == list(range(rows))
    assert all(
        first // at_once == (first + length - 1) // at_once for own in passes for first, length in own if at_once
    )


@given(items=st.lists(st.integers()), sizes=st.sampled_from((CONVERT_ROUNDS, SUM_ROUNDS, (1,))))
def test_holds_every_item_one_round_in_their_order(items: list[int], sizes: tuple[int, ...]) -> None:
    found = list(rounds(items, sizes))
    assert [item for together in found for item in together] == items
    whole = len(items) // sum(sizes) * len(sizes)
    assert [len(together) for together in found[:whole]] == list(sizes) * (len(items) // sum(sizes))
    assert all(len(together) == 1 for together in found[whole:])
