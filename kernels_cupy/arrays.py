"""Tensors of a plan as arrays in memory order, and back: number formats and layouts. NumPy or CuPy alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.launch import Plan
from traces.paging import block_table
from traces.tensor import Tensor

STORAGE: Mapping[str, type[np.generic]] = {
    "fp16": np.float16,
    "bf16": np.uint16,
    "fp32": np.float32,
    "int32": np.int32,
    "int8": np.int8,
    "fp8": np.uint8,
}
"""NumPy type that holds a number format; bf16 and fp8, which NumPy does not have, as their bits."""

_NAN: Mapping[str, float | int] = {"fp16": np.nan, "bf16": 0x7FC0, "fp32": np.nan, "int8": -128, "fp8": 0x7F}
BLOCK_TABLE = "block_table"
_HEADS_AND_ROWS = (0, 2, 1, 3)
CACHE, SCALES = ("K", "V", "KV", "K_outliers"), ("K_scale", "V_scale")
"""Tensors of a cache with a row for every token, and those that have one where scales are per token."""
OUTLIER_INDEX = "K_outlier_index"
TIMING_ELEMENTS = 1 << 20


def storage_type(tensor: Tensor) -> type[np.generic]:
    """NumPy type of the tensor's elements; ValueError for a format that has none."""
    if tensor.dtype.name not in STORAGE:
        raise ValueError(f"tensor {tensor.name}: dtype {tensor.dtype.name!r} is not one of {', '.join(STORAGE)}")
    return STORAGE[tensor.dtype.name]


def memory_shape(tensor: Tensor) -> tuple[int, int, int, int]:
    """Shape of the contiguous array: [batch, heads, rows, cols], or [batch, rows, heads, cols] for `bshd`."""
    heads_rows = (tensor.heads, tensor.rows) if tensor.layout == "bhsd" else (tensor.rows, tensor.heads)
    return tensor.batch, *heads_rows, tensor.cols


def encode(tensor: Tensor, values: NDArray[np.float32]) -> NDArray[Any]:
    """`values` [batch, heads, rows, cols] rounded to the tensor's format, contiguous in its layout."""
    ordered = values if tensor.layout == "bhsd" else values.transpose(_HEADS_AND_ROWS)
    target = storage_type(tensor)
    if tensor.dtype.name == "bf16":
        rounded = tensor.dtype.round(np.ascontiguousarray(ordered, dtype=np.float32))
        return (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if tensor.dtype.quantised:
        codes: NDArray[Any] = tensor.dtype.round(np.nan_to_num(ordered))
        if tensor.dtype.name == "fp8":
            # Exponent and mantissa are those of an fp16 number 2^8 times smaller, one place down.
            bits = (codes / np.float32(256)).astype(np.float16).view(np.uint16)
            codes = (bits >> 8 & 0x80) | (bits >> 7 & 0x7F)
        return np.ascontiguousarray(np.where(np.isnan(ordered), poison(tensor), codes.astype(target)))
    return np.ascontiguousarray(ordered, dtype=target)


def decode(tensor: Tensor, array: Any) -> Any:
    """Inverse of `encode`: float32 [batch, heads, rows, cols] of a NumPy or CuPy array in memory order."""
    if tensor.dtype.name == "bf16":
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if tensor.dtype.name == "fp8":
        bits = array.astype(np.uint16)
        array = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16).astype(np.float32) * np.float32(256)
    values = array.astype(np.float32, copy=False)
    return values if tensor.layout == "bhsd" else values.transpose(_HEADS_AND_ROWS)


def poison(tensor: Tensor) -> Any:
    """The element that says "never written": NaN in the tensor's format, as a value of its storage type."""
    return storage_type(tensor)(_NAN[tensor.dtype.name])


def random_inputs(plan: Plan, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Standard normal values for each of the plan's inputs, [batch, heads, rows, cols]; for a quantised cache, codes
    and positive scales, and outliers in channels where the codes of K are 0.

    A paged cache has NaN wherever no sequence has a token, and its block table is the one that the plan was made for.
    """
    generator = np.random.default_rng(seed)
    inputs = {}
    for t in (t for t in plan.tensors if t.name in plan.inputs and t.name != BLOCK_TABLE):
        values = generator.standard_normal((t.batch, t.heads, t.rows, t.cols), dtype=np.float32)
        inputs[t.name] = _cached(t, values)
    if OUTLIER_INDEX in inputs:
        index, codes = plan.tensor(OUTLIER_INDEX), inputs["K"]
        channels = np.broadcast_to(np.arange(codes.shape[3]), (index.heads, codes.shape[3]))
        channels = np.sort(generator.permuted(channels, axis=1)[:, : index.cols])[None, :, None]
        np.put_along_axis(codes, np.broadcast_to(channels, (*codes.shape[:3], index.cols)), 0, axis=3)
        inputs[OUTLIER_INDEX] = channels.astype(np.float32)
    if BLOCK_TABLE not in plan.inputs:
        return inputs
    table = block_table(plan.problem, plan.schedule.seed)
    used = np.zeros((table.page_count, table.page_size), bool)
    for length, pages in zip(table.lengths, table.pages, strict=True):
        for i, page in enumerate(pages):
            used[page, : length - i * table.page_size] = True
    for name in (n for n in inputs if n in CACHE or (n in SCALES and plan.problem.kv_scale == "token")):
        inputs[name][~np.broadcast_to(used[:, None, :, None], inputs[name].shape)] = np.nan
    return inputs | {BLOCK_TABLE: table.array()[None, None].astype(np.float32)}


def _cached(tensor: Tensor, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standard normal `values` as what the tensor may hold: codes that use their format's range, scales around 1/64."""
    if tensor.name in SCALES:
        return (np.abs(values) + np.float32(0.5)) / np.float32(64)
    return tensor.dtype.round(values * np.float32(32)) if tensor.dtype.quantised else values


def fill_random(plan: Plan, arrays: Mapping[str, Any], seed: int = 0) -> None:
    """Fill the plan's inputs in place with `TIMING_ELEMENTS` standard normal values over and over: to be timed, not
    checked, where to make and copy gigabytes of numbers would take longer than to attend to them.
    """
    for number, name in enumerate(plan.inputs):
        tensor, flat = plan.tensor(name), arrays[name].reshape(-1)
        if name == BLOCK_TABLE:
            arrays[name].set(block_table(plan.problem, plan.schedule.seed).array()[None, None])
            continue
        if name == OUTLIER_INDEX:
            arrays[name].set(np.tile(np.arange(tensor.cols, dtype=np.int32), (1, tensor.heads, 1, 1)))
            continue
        values: NDArray[np.float32] = np.roll(_normal(seed), 1013 * number)[: flat.size]  # no two inputs are alike
        block = encode(tensor, _cached(tensor, values[None, None, None])).reshape(-1)
        flat[: block.size].set(block)
        for start in range(block.size, flat.size, block.size):
            flat[start : start + block.size] = flat[: min(block.size, flat.size - start)]


@cache
def _normal(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(TIMING_ELEMENTS, dtype=np.float32)


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """Elements from one batch, one head, one row of a tensor to the next."""
    matrix = tensor.rows * tensor.cols
    if tensor.layout == "bhsd":
        return tensor.heads * matrix, matrix, tensor.cols
    return tensor.heads * matrix, tensor.cols, tensor.heads * tensor.cols
