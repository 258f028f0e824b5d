"""Tensors of a plan as arrays in memory order, and back: number formats and layouts. NumPy or CuPy alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.launch import Plan
from traces.tensor import Tensor

STORAGE: Mapping[str, type[np.generic]] = {"fp16": np.float16, "bf16": np.uint16, "fp32": np.float32}
"""NumPy type that holds a number format; bf16, which NumPy does not have, as its bits."""

_NAN: Mapping[str, float | int] = {"fp16": np.nan, "bf16": 0x7FC0, "fp32": np.nan}
_HEADS_AND_ROWS = (0, 2, 1, 3)


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
    return np.ascontiguousarray(ordered, dtype=target)


def decode(tensor: Tensor, array: Any) -> Any:
    """Inverse of `encode`: float32 [batch, heads, rows, cols] of a NumPy or CuPy array in memory order."""
    if tensor.dtype.name == "bf16":
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values = array.astype(np.float32, copy=False)
    return values if tensor.layout == "bhsd" else values.transpose(_HEADS_AND_ROWS)


def poison(tensor: Tensor) -> Any:
    """The element that says "never written": NaN in the tensor's format, as a value of its storage type."""
    return storage_type(tensor)(_NAN[tensor.dtype.name])


def random_inputs(plan: Plan, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Standard normal values for each of the plan's inputs, [batch, heads, rows, cols]."""
    generator = np.random.default_rng(seed)
    return {
        t.name: generator.standard_normal((t.batch, t.heads, t.rows, t.cols), dtype=np.float32)
        for t in plan.tensors
        if t.name in plan.inputs
    }


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """Elements from one batch, one head, one row of a tensor to the next."""
    matrix = tensor.rows * tensor.cols
    if tensor.layout == "bhsd":
        return tensor.heads * matrix, matrix, tensor.cols
    return tensor.heads * matrix, tensor.cols, tensor.heads * tensor.cols
