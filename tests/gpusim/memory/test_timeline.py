"""Does the timeline keep every byte and every cycle in the right place while its bins widen?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpusim.memory.state import FIRST_BIN_CYCLES, TIMELINE_BINS, MemorySystem
from gpusim.memory.timeline import _fold, bin_of, record_activity, record_bytes, record_hits
from tests.gpusim.memory.systems import MIB, system


@pytest.fixture
def memory() -> MemorySystem:
    return system("l2.size=64KiB", sizes=(MIB, MIB))


def test_does_folding_add_neighbours() -> None:
    values = np.arange(16, dtype=float).reshape(2, 8)
    _fold(values)
    assert values.tolist() == [[1, 5, 9, 13, 0, 0, 0, 0], [17, 21, 25, 29, 0, 0, 0, 0]]


def cycles_in_bins(start: float, end: float, width: float) -> NDArray[np.float64]:
    """How much of [start, end) each bin covers."""
    edges = np.arange(TIMELINE_BINS) * width
    covered: NDArray[np.float64] = np.clip(np.minimum(end, edges + width) - np.maximum(start, edges), 0, None)
    return covered


@pytest.mark.parametrize("span", (1e3, 1e5, 1e7))
@pytest.mark.parametrize("ordered", (True, False))
def test_is_every_byte_in_the_bin_of_its_time(memory: MemorySystem, span: float, ordered: bool) -> None:
    """Whole bytes per cycle over whole powers of two of cycles (or all at once): nothing on the way is rounded."""
    random = np.random.default_rng(0)
    starts = random.integers(0, int(span), 3000)
    starts = np.sort(starts) if ordered else starts
    ends = starts + random.choice([0, 1, 16, 256, 8192], 3000)
    rates = random.integers(1, 5000, 3000)
    tensors, levels = random.integers(0, 2, 3000), random.integers(0, 5, 3000)
    for start, end, rate, level, tensor in zip(starts, ends, rates, levels, tensors, strict=True):
        amount = int(rate * max(1, end - start))
        record_bytes(memory.state, int(level), int(tensor), float(start), float(end), amount)
    v = memory.values
    width = v["bin_cycles"][0]
    expected = np.zeros_like(v["timeline"])
    for start, end, rate, level, tensor in zip(starts, ends, rates, levels, tensors, strict=True):
        expected[level, tensor] += rate * cycles_in_bins(start, end, width)
        expected[level, tensor, int(start / width)] += rate * (start == end)
    assert np.array_equal(v["timeline"], expected)
    assert v["touched_bins"][0] == int(ends.max() / width) + 1


TIMES = st.floats(0, 1e6) | st.integers(0, 1 << 20).map(float)


def test_does_a_span_that_ends_on_an_edge_leave_no_negative_bytes(memory: MemorySystem) -> None:
    for start in np.linspace(0, 63, 200):
        record_bytes(memory.state, 0, 0, float(start), 64.0 * 37, 96)
    assert memory.values["timeline"].min() >= 0


@given(
    spans=st.lists(st.tuples(TIMES, st.floats(1, 3e5) | st.just(0.0), st.integers(1, 1 << 30)), min_size=1, max_size=30)
)
@settings(max_examples=60, deadline=None)
def test_are_bytes_spread_evenly_and_none_lost(spans: list[tuple[float, float, int]]) -> None:
    memory = system("l2.size=64KiB", sizes=(MIB,))
    for start, length, amount in spans:
        record_bytes(memory.state, 2, 0, start, start + length, amount)
    v = memory.values
    width = v["bin_cycles"][0]
    expected = np.zeros(TIMELINE_BINS)
    for start, length, amount in spans:
        end = start + length
        if int(start / width) == int(end / width):
            expected[int(start / width)] += amount
        else:
            expected += amount * cycles_in_bins(start, end, width) / (end - start)
    whole = sum(amount for _, _, amount in spans)
    found = v["timeline"][2, 0]
    # Times up to 1.3e6 cycles are rounded to 2e-10 of a cycle, so shares of the shortest spans to as much.
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-9 * whole)
    assert math.fsum(found) == pytest.approx(whole, rel=1e-13, abs=0)
    assert found.min() >= 0
    assert np.count_nonzero(v["timeline"]) == np.count_nonzero(found)


def test_does_nothing_leave_no_trace(memory: MemorySystem) -> None:
    record_bytes(memory.state, 0, 0, 0.0, 1e6, 0)
    assert memory.values["touched_bins"][0] == 0 == memory.values["timeline"].sum()


def test_are_bins_as_narrow_as_they_can_be(memory: MemorySystem) -> None:
    assert bin_of(memory.state, TIMELINE_BINS * FIRST_BIN_CYCLES - 1) == TIMELINE_BINS - 1
    assert memory.values["bin_cycles"][0] == FIRST_BIN_CYCLES
    assert bin_of(memory.state, TIMELINE_BINS * FIRST_BIN_CYCLES) == TIMELINE_BINS // 2
    assert memory.values["bin_cycles"][0] == 2 * FIRST_BIN_CYCLES
    assert bin_of(memory.state, 1e9) < TIMELINE_BINS
    assert memory.values["bin_cycles"][0] * TIMELINE_BINS / 2 <= 1e9


@given(spans=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 3e5)), max_size=30))
@settings(max_examples=40, deadline=None)
def test_is_activity_spread_over_the_bins_it_covers(spans: list[tuple[float, float]]) -> None:
    memory = system("l2.size=64KiB", sizes=(MIB,))
    for start, length in spans:
        record_activity(memory.state, 1, start, start + length)
    v = memory.values
    expected = np.zeros(TIMELINE_BINS)
    for start, length in spans:
        expected += cycles_in_bins(start, start + length, v["bin_cycles"][0])
    assert np.allclose(v["activity"][1], expected, rtol=1e-9, atol=1e-4)
    assert np.isclose(v["activity"][1].sum(), sum((s + n) - s for s, n in spans))


def test_are_lookups_kept_when_bins_widen(memory: MemorySystem) -> None:
    for t in (0.0, 1e4, 1e6):
        record_hits(memory.state, t, 3, 5)
    assert memory.values["activity"][3].sum() == 9 and memory.values["activity"][4].sum() == 15


def test_does_a_new_timeline_start_at_zero_and_keep_the_cache(memory: MemorySystem) -> None:
    memory.values["tags"][5] = 0x1234F
    record_bytes(memory.state, 0, 0, 1e6, 2e6, 64)
    memory.values["bus_free"][:] = 1e6
    memory.start_timeline()
    v = memory.values
    assert v["timeline"].sum() == v["activity"].sum() == v["bus_free"].sum() == v["touched_bins"][0] == 0
    assert v["bin_cycles"][0] == FIRST_BIN_CYCLES and v["tags"][5] == 0x1234F
