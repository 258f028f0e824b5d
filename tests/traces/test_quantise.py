"""How far is a quantised K or V from what it was, and what happens at the edges?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.dtypes import DTYPES
from traces.problem import KV_SCALES, AttentionProblem
from traces.quantise import (
    dequantise,
    dequantised_cache,
    outlier_channels,
    quantise,
    quantised_cache,
    scale_shape,
    scales_of,
    with_outliers,
    without_outliers,
)

CODES = st.sampled_from(("int8", "fp8"))
STORAGES = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}
"""Formats that K and V are dequantised to, and half of their relative step."""


@given(
    seed=st.integers(0, 1 << 30),
    shape=st.tuples(*(st.integers(1, n) for n in (2, 3, 20, 24))),
    code=CODES,
    storage=st.sampled_from(tuple(STORAGES)),
    kv_scale=st.sampled_from(KV_SCALES),
    exponents=st.tuples(st.integers(-30, 10), st.integers(0, 12)),
)
def test_is_the_error_at_most_half_a_step_and_the_rounding_of_the_result(
    seed: int, shape: tuple[int, ...], code: str, storage: str, kv_scale: str, exponents: tuple[int, int]
) -> None:
    """Half a step of the code, what saturates because the scale was rounded, and the rounding of the product."""
    generator = np.random.default_rng(seed)
    spread = np.ldexp(np.float32(1), generator.integers(0, exponents[1], shape, endpoint=True))
    x = (generator.standard_normal(shape, np.float32) * spread * np.float32(2.0 ** exponents[0])).astype(np.float32)
    format_ = DTYPES[code]
    scale = scales_of(x, format_, kv_scale, DTYPES[storage])
    assert scale.shape[2:] == scale_shape(kv_scale, *shape[2:])
    back = dequantise(quantise(x, scale, format_), scale, DTYPES[storage]).astype(np.float64)

    size, s = np.abs(x).astype(np.float64), scale.astype(np.float64)
    step = s / 2 if code == "int8" else np.maximum(size * 2.0**-4, s * 2.0**-10)
    saturated = np.maximum(size - format_.largest * s, 0)
    smallest = 2.0**-25 if storage == "fp16" else 0
    bound = np.maximum(step, saturated) * (1 + 1e-6) + np.abs(back) * 2 * STORAGES[storage] + smallest
    assert (np.abs(back - x) <= np.where(s > 0, bound, size)).all()
    # With a scale of normal size no more saturates than its rounding makes.
    assert (saturated[np.broadcast_to(s > 2.0**-14, shape)] <= 2 * STORAGES[storage] * size.max()).all()


@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize("kv_scale", KV_SCALES)
def test_do_zeros_have_scale_zero_and_come_back_as_zeros(code: str, kv_scale: str) -> None:
    x = np.zeros((1, 1, 4, 8), np.float32)
    x[0, 0, 1:, 1:] = np.random.default_rng(0).standard_normal((3, 7))
    for values in (x, np.zeros_like(x), np.full_like(x, 1e-44)):
        scale = scales_of(values, DTYPES[code], kv_scale, DTYPES["fp16"])
        back = dequantise(quantise(values, scale, DTYPES[code]), scale, DTYPES["fp16"])
        assert np.isfinite(back).all() and (back[np.abs(values) < 1e-40] == 0).all()
    assert (scales_of(x, DTYPES[code], "token", DTYPES["fp16"])[0, 0, 0] == 0).all()
    assert (scales_of(x, DTYPES[code], "channel", DTYPES["fp16"])[0, 0, :, 0] == 0).all()


@given(seed=st.integers(0, 1 << 30), code=CODES, kv_scale=st.sampled_from(KV_SCALES))
def test_are_codes_of_the_format_and_the_largest_reaches_its_end(seed: int, code: str, kv_scale: str) -> None:
    x = np.random.default_rng(seed).standard_normal((2, 2, 9, 16), np.float32)
    codes = quantise(x, scales_of(x, DTYPES[code], kv_scale, DTYPES["fp32"]), DTYPES[code])
    np.testing.assert_array_equal(DTYPES[code].round(codes), codes)
    shared = {"token": 3, "channel": 2, "head": (2, 3)}[kv_scale]
    assert (np.abs(codes).max(axis=shared) == DTYPES[code].largest).all()


@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 8))
def test_are_outliers_the_largest_channels_of_each_head_and_put_back_exactly(seed: int, count: int) -> None:
    k = np.random.default_rng(seed).standard_normal((2, 3, 10, 8), np.float32)
    index = outlier_channels(k, count)
    assert index.shape == (1, 3, 1, count)
    for head in range(3):
        largest = np.abs(k[:, head]).max(axis=(0, 1))
        kept = set(index[0, head, 0].tolist())
        assert len(kept) == count and all(largest[i] >= largest[j] for i in kept for j in set(range(8)) - kept)
        rest, outliers = without_outliers(k, index)
        assert (rest[:, head][..., sorted(kept)] == 0).all()
    np.testing.assert_array_equal(with_outliers(rest, outliers, index), k)


def test_do_outlier_channels_take_no_part_in_the_scales_of_the_others() -> None:
    k = np.random.default_rng(1).standard_normal((1, 2, 64, 32), np.float32)
    k[:, 0, :, 5] *= 100
    k[:, 1, :, 9] *= 50
    p = AttentionProblem(heads=2, seq=64, dim=32, kv_dtype="int8", outlier_channels=1, kv_scale="head")
    cache = quantised_cache(p, k, k)
    assert cache["K_outlier_index"].ravel().tolist() == [5, 9]
    assert (cache["K_scale"] < 5 / 127).all() and (cache["V_scale"] > 50 / 127).all()
    back, _ = dequantised_cache(p, cache)
    np.testing.assert_array_equal(back[0, 0, :, 5], k[0, 0, :, 5])
    assert np.abs(np.delete(back[0, 0], 5, 1) - np.delete(k[0, 0], 5, 1)).max() < 5 / 127


def test_is_a_number_that_is_not_finite_refused_by_name() -> None:
    p = AttentionProblem(heads=1, seq=4, dim=8, kv_dtype="fp8")
    k = np.ones((1, 1, 4, 8), np.float32)
    for wrong in (np.inf, np.nan):
        v = k.copy()
        v[0, 0, 2, 3] = wrong
        with pytest.raises(ValueError, match="V to quantise must hold finite numbers only"):
            quantised_cache(p, k, v)


def test_is_a_quantised_v_alone_a_quantised_cache_and_equal_formats_none() -> None:
    assert "quantised_kv" in AttentionProblem(v_dtype="fp8").features
    assert "quantised_kv" in AttentionProblem(kv_dtype="int8", v_dtype="fp16").features
    assert "quantised_kv" not in AttentionProblem(dtype="fp8").features
    with pytest.raises(ValueError, match="dtype fp8 is no format to dequantise K and V to"):
        AttentionProblem(dtype="fp8", kv_dtype="int8")
