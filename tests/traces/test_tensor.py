"""Do tiles cover exactly the bytes of the elements they name?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.problems import byte_addresses
from traces.dtypes import DTYPES
from traces.launch import WorkItem
from traces.tensor import ALIGNMENT_BYTES, Tensor, TensorTable, stacked


def _element_addresses(t: Tensor) -> np.ndarray:
    """Address of element [batch, head, row, col], from NumPy's own layout."""
    count = t.batch * t.heads * t.rows * t.cols
    flat = t.base + np.arange(count, dtype=np.int64) * t.dtype.element_bytes
    if t.layout == "bhsd":
        return flat.reshape(t.batch, t.heads, t.rows, t.cols)
    return flat.reshape(t.batch, t.rows, t.heads, t.cols).transpose(0, 2, 1, 3)


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    layout=st.sampled_from(("bhsd", "bshd")),
    dtype=st.sampled_from(("fp32", "fp16")),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_does_a_tile_cover_exactly_its_elements(
    shape: tuple[int, int, int, int], layout: str, dtype: str, data: st.DataObject
) -> None:
    table = TensorTable()
    table.add("before", (1, 1, 3, 5), DTYPES["fp32"])
    t = table.add("X", shape, DTYPES[dtype], layout)
    batch, head = data.draw(st.integers(0, t.batch - 1)), data.draw(st.integers(0, t.heads - 1))
    row, col = data.draw(st.integers(0, t.rows - 1)), data.draw(st.integers(0, t.cols - 1))
    height, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    view = t.view(batch, head).window(row, height, col, width)
    assert (view.rows, view.cols) == (min(height, t.rows - row), min(width, t.cols - col))
    matrix = WorkItem((view,), ()).matrices()[0]
    r, c = data.draw(st.integers(0, view.rows)), data.draw(st.integers(0, view.cols - 1))
    rows, cols = data.draw(st.integers(0, 12)), data.draw(st.one_of(st.none(), st.integers(1, 12)))
    tile = matrix.tile(r, rows, c, cols)

    within = _element_addresses(t)[batch, head, row : row + view.rows, col : col + view.cols]
    elements = within[r : r + rows, c : view.cols if cols is None else c + cols]
    expected = (elements[..., None] + np.arange(t.dtype.element_bytes)).ravel()
    np.testing.assert_array_equal(byte_addresses(tile, view), expected)
    assert tile.size_bytes == expected.size


@given(rows=st.integers(1, 64), cols=st.integers(1, 64), heads=st.integers(1, 4))
@settings(deadline=None)
def test_is_a_block_without_gaps_a_single_run(rows: int, cols: int, heads: int) -> None:
    t = TensorTable().add("X", (1, heads, rows, cols), DTYPES["fp16"], "bhsd")
    view = t.view(0, heads - 1)
    tile = WorkItem((view,), ()).matrices()[0].tile(0, rows)
    assert tile.span(view) == (0, 1, rows * cols * 2, rows * cols * 2)


@given(page_rows=st.integers(1, 32), pages=st.integers(2, 9), cols=st.integers(1, 16), data=st.data())
@settings(deadline=None)
def test_do_runs_cover_rows_on_pages_in_as_few_as_fit(
    page_rows: int, pages: int, cols: int, data: st.DataObject
) -> None:
    t = TensorTable().add("X", (pages, 1, page_rows, cols), DTYPES["fp16"], "bhsd")
    order = data.draw(st.permutations(range(pages)).filter(lambda p: list(p) != sorted(p)))
    view = stacked([t.view(page, 0) for page in order])
    row = data.draw(st.integers(0, view.rows - 1))
    tile = WorkItem((view,), ()).matrices()[0].tile(row, data.draw(st.integers(1, view.rows - row)))
    _, runs, run_bytes, _ = tile.span(view)
    assert runs * run_bytes == tile.size_bytes
    if row % page_rows == 0 and tile.rows % page_rows == 0:
        assert runs == tile.rows // page_rows
    addresses = [
        t.base + (order[r // page_rows] * page_rows + r % page_rows) * cols * 2 for r in range(row, row + tile.rows)
    ]
    expected = (np.array(addresses)[:, None] + np.arange(cols * 2)).ravel()
    np.testing.assert_array_equal(byte_addresses(tile, view), expected)


def test_are_rectangles_that_follow_each_other_one_page() -> None:
    t = TensorTable().add("LSE", (2, 4, 1, 1), DTYPES["fp32"], "bhsd")
    view = stacked([t.view(1, head) for head in range(4)])
    assert WorkItem((view,), ()).matrices()[0].tile(0, 4).span(view)[1:3] == (1, 16)


@given(sizes=st.lists(st.integers(1, 3 << 20), min_size=1, max_size=6))
@settings(deadline=None)
def test_do_tensors_lie_aligned_and_apart(sizes: list[int]) -> None:
    table = TensorTable()
    for i, size in enumerate(sizes):
        table.add(f"T{i}", (1, 1, 1, size), DTYPES["fp16"])
    end = 0
    for t in table.tensors:
        assert t.base % ALIGNMENT_BYTES == 0 and t.base >= end
        end = t.end


def test_is_a_second_tensor_of_the_same_name_refused() -> None:
    table = TensorTable()
    table.add("Q", (1, 1, 1, 1), DTYPES["fp16"])
    with pytest.raises(ValueError, match="'Q' is allocated twice"):
        table.add("Q", (1, 1, 1, 1), DTYPES["fp16"])
