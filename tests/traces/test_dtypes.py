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


def _e4m3(code: int) -> float:
    """What the byte `code` means : a sign, 4 bits of exponent (bias 7), 3 of mantissa; S.1111.111 is NaN (OCP)."""
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3 = np.array([_e4m3(code) for code in range(0x7F)], np.float32)
"""The 127 values that are not negative, ascending; the index is the code."""


def test_are_all_256_codes_of_fp8_kept() -> None:
    values = np.array([_e4m3(code) for code in range(256)], np.float32)
    rounded = DTYPES["fp8"].round(values)
    np.testing.assert_array_equal(rounded, values)
    np.testing.assert_array_equal(np.signbit(rounded[:0x7F]), False)
    np.testing.assert_array_equal(np.signbit(rounded[0x80:0xFF]), True)
    assert len(np.unique(values[:0x7F])) == 127 and values[0x7E] == 448 and values[1] == 2.0**-9


def test_is_fp8_the_nearest_code_and_ties_to_even_between_all_neighbours() -> None:
    below, above = E4M3[:-1], E4M3[1:]
    middle = (below + above) / 2  # exact in fp32
    even = np.where(np.arange(126) % 2 == 0, below, above)
    for sign in (np.float32(1), np.float32(-1)):
        np.testing.assert_array_equal(DTYPES["fp8"].round(sign * middle), sign * even)
        np.testing.assert_array_equal(
            DTYPES["fp8"].round(sign * np.nextafter(middle, 0, dtype=np.float32)), sign * below
        )
        np.testing.assert_array_equal(DTYPES["fp8"].round(sign * np.nextafter(middle, np.float32(1e9))), sign * above)


@given(bits=_BITS)
@settings(deadline=None)
def test_is_fp8_saturated_and_nearest_for_any_float(bits: list[int]) -> None:
    x = _floats(bits)
    x = x[~np.isnan(x)]
    rounded = DTYPES["fp8"].round(x)
    distance = np.abs(np.minimum(np.abs(x), 448).astype(np.float64)[:, None] - E4M3[None, :]).min(axis=1, initial=1e9)
    np.testing.assert_array_equal(np.abs(np.clip(x, -448, 448).astype(np.float64) - rounded), distance)
    assert np.isin(np.abs(rounded), E4M3).all()


def test_is_int8_symmetric_whole_and_even_at_ties() -> None:
    codes = np.arange(-127, 128, dtype=np.float32)
    np.testing.assert_array_equal(DTYPES["int8"].round(codes), codes)
    np.testing.assert_array_equal(
        DTYPES["int8"].round(codes[:-1] + np.float32(0.5)), 2 * np.rint(codes[:-1] / 2 + 0.25)
    )
    wide = np.array([-128, 127.5, np.inf, -np.inf, -0.25], np.float32)
    rounded = DTYPES["int8"].round(wide)
    np.testing.assert_array_equal(rounded, [-127, 127, 127, -127, 0])
    assert not np.signbit(rounded[-1]), "int8 has no -0"
    assert (
        np.isnan(DTYPES["int8"].round(np.float32([np.nan]))).all()
        and np.isnan(DTYPES["fp8"].round(np.float32([np.nan]))).all()
    )
