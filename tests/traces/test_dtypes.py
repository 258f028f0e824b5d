"""Is a number stored in a narrow format the nearest one, ties to even?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.dtypes import DTYPES, dtype


def _floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


_BITS = st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=50)


@given(bits=_BITS)
@settings(deadline=None)
def test_is_bf16_the_nearest_of_its_neighbours(bits: list[int]) -> None:
    x = _floats([b for b in bits if b & 0x7F800000 != 0x7F800000] or [0])
    rounded = DTYPES["bf16"].round(x)
    below = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    # The step between neighbours, so that the one past the largest is 2^128 and not infinity.
    exponent = np.maximum((x.view(np.uint32) >> 23) & 0xFF, 1).astype(np.float64) - 127
    above = below.astype(np.float64) + np.copysign(2.0 ** (exponent - 7), x)
    to_below, to_above = np.abs(x - below.astype(np.float64)), np.abs(above - x)
    odd = (below.view(np.uint32) >> 16) & 1 == 1
    up = (to_above < to_below) | ((to_above == to_below) & odd)
    with np.errstate(over="ignore"):
        expected = np.where(up, above, below).astype(np.float32)
    np.testing.assert_array_equal(rounded, expected)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(x))


@given(bits=_BITS)
@settings(deadline=None)
def test_is_fp16_what_numpy_makes_of_it(bits: list[int]) -> None:
    x = _floats(bits)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(DTYPES["fp16"].round(x), x.astype(np.float16).astype(np.float32))


@given(bits=_BITS)
@settings(deadline=None)
def test_is_fp32_left_alone(bits: list[int]) -> None:
    x = _floats(bits)
    assert DTYPES["fp32"].round(x).tobytes() == x.tobytes()


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_do_infinity_and_nan_survive_and_is_rounding_idempotent(name: str) -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(DTYPES[name].round(special), special)
    once = DTYPES[name].round(np.linspace(-3, 3, 1001, dtype=np.float32))
    np.testing.assert_array_equal(DTYPES[name].round(once), once)


def test_is_an_unknown_format_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"dtype 'fp12' is not one of fp32, fp16, bf16"):
        dtype("fp12")
