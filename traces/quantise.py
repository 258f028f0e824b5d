"""Quantisation of K and V: int8 or fp8 codes with a scale per token, channel or head, and outlier channels of K apart.

x is stored as a code with code * scale ≈ x, symmetric around 0, where scale = max |x| / (largest code) over what shares
the scale: the channels of a token, the tokens of a channel, or all of a (sequence, KV head). Values of K cluster by
channel and have a few channels of large magnitude, those of V do not (Liu et al. 2024, KIVI, arXiv:2402.02750; Hooper
et al. 2024, KVQuant, arXiv:2401.18079), which is why such channels may stay in 16 bits.

Arrays are [batch, KV heads, tokens, channels]; codes are held as float32, as everywhere in the numeric driver.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.dtypes import DType
from traces.problem import AttentionProblem
from traces.sequences import key_rows

Array = NDArray[np.float32]


def scale_shape(kv_scale: str, tokens: int, channels: int) -> tuple[int, int]:
    """(rows, columns) of the scales of one head: those of the head with what shares a scale shrunk to 1."""
    return (tokens if kv_scale == "token" else 1), (channels if kv_scale == "channel" else 1)


def scales_of(x: Array, code: DType, kv_scale: str, storage: DType) -> Array:
    """The smallest scales with which no element of `x` saturates, rounded to `storage`.

    They are kept in fp32, but K and V are dequantised by products in the format of Q, so it is a number of that format
    that the codes must be made for. All-zero `x`, or `x` too small for it, gives 0.

    Args:
        x: finite, [..., tokens, channels].
        code: format of the codes.
        kv_scale: one of `traces.problem.KV_SCALES`.
        storage: format that dequantised values have.
    """
    shared = {"token": (-1,), "channel": (-2,), "head": (-2, -1)}[kv_scale]
    return storage.round(np.max(np.abs(x), axis=shared, keepdims=True, initial=0) / np.float32(code.largest))


def quantise(x: Array, scale: Array, code: DType) -> Array:
    """Codes of `x`, to the nearest, saturating; 0 where the scale is 0."""
    return code.round(np.divide(x, scale, out=np.zeros_like(x), where=np.broadcast_to(scale > 0, x.shape)))


def dequantise(codes: Array, scale: Array, storage: DType) -> Array:
    """What `codes` stand for, in the format `storage`: int8 and fp8 convert to it exactly, their product is rounded."""
    return storage.round(codes * storage.round(scale))


def outlier_channels(k: Array, count: int) -> NDArray[np.int64]:
    """The `count` channels of largest max |K| of each KV head in all sequences, ascending: [1, KV heads, 1, count]."""
    largest = np.max(np.abs(k), axis=(0, 2), initial=0)
    return np.sort(np.argsort(-largest, axis=-1, kind="stable")[:, :count], axis=-1)[None, :, None, :]


def without_outliers(k: Array, channels: NDArray[np.int64]) -> tuple[Array, Array]:
    """(K with zeros in the outlier channels, those channels [..., tokens, count])."""
    index = np.broadcast_to(channels, (*k.shape[:-1], channels.shape[-1]))
    rest = k.copy()
    np.put_along_axis(rest, index, 0, axis=-1)
    return rest, np.take_along_axis(k, index, axis=-1)


def with_outliers(k: Array, outliers: Array, channels: NDArray[np.int64]) -> Array:
    """Inverse of `without_outliers`."""
    whole = k.copy()
    np.put_along_axis(whole, np.broadcast_to(channels, outliers.shape), outliers, axis=-1)
    return whole


def quantised_cache(problem: AttentionProblem, k: Array, v: Array) -> dict[str, Array]:
    """The inputs that a plan takes in place of `k` and `v`: codes, scales and outliers, whichever the problem asks for.

    Args:
        k, v: [batch, KV heads, tokens, channels]; sequences of unequal lengths are packed (`traces.sequences`).

    Raises:
        ValueError: a number is not finite.
    """
    p = problem
    cache: dict[str, Array] = {}
    for name, values, code in (("K", k, p.kv_storage), ("V", v, p.v_storage)):
        x = np.asarray(values, np.float32)
        if p.dequantises(name):
            if not np.isfinite(x).all():
                raise ValueError(f"{name} to quantise must hold finite numbers only")
            if name == "K" and p.outlier_channels:
                channels = outlier_channels(x, p.outlier_channels)
                x, cache["K_outliers"] = without_outliers(x, channels)
                cache["K_outlier_index"] = channels.astype(np.float32)
            if p.kv_scale == "token":
                scale = scales_of(x, code, "token", p.storage)
            else:
                scale = np.stack([scales_of(part, code, p.kv_scale, p.storage) for part in _sequences(p, x)])
            cache[f"{name}_scale"] = scale
            x = quantise(x, _by_row(p, scale, x), code)
        cache[name] = x
    return cache


def dequantised_cache(problem: AttentionProblem, cache: dict[str, Array]) -> tuple[Array, Array]:
    """K and V as kernels see them after dequantisation: what the inputs of a plan stand for."""
    found = []
    for name in ("K", "V"):
        x = cache[name]
        if f"{name}_scale" in cache:
            x = dequantise(x, _by_row(problem, cache[f"{name}_scale"], x), problem.storage)
        if f"{name}_outliers" in cache:
            x = with_outliers(x, cache[f"{name}_outliers"], cache[f"{name}_outlier_index"].astype(np.int64))
        found.append(x)
    return found[0], found[1]


def _sequences(problem: AttentionProblem, x: Array) -> list[Array]:
    """[KV heads, tokens, channels] of each sequence."""
    places = (key_rows(problem).place(b) for b in range(problem.batch))
    return [x[entry, :, rows] for entry, rows in places]


def _by_row(problem: AttentionProblem, scale: Array, x: Array) -> Array:
    """Scales as they apply to the rows of `x`: those of a sequence repeated where sequences are packed."""
    if problem.kv_scale == "token" or not problem.lengths:
        return scale
    return np.repeat(scale, problem.kv_lengths, axis=0).transpose(2, 1, 0, 3)
