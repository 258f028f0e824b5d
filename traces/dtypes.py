"""Number formats: bytes per element, and how NumPy emulates each one's rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DType:
    """A number format as stored in memory.

    Attributes:
        name: the name used on the command line (`fp16`).
        element_bytes: bytes of one element in memory.
        mantissa_bits: explicit fraction bits, for rounding in the numeric driver.
    """

    name: str
    element_bytes: int
    mantissa_bits: int

    def round(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        """Round `values` to this format (nearest even) and return them as float32."""
        x = np.asarray(values, dtype=np.float32)
        if self.name == "fp32":
            return x
        if self.name == "fp16":
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float32)
        bits = x.view(np.uint32)
        drop = 23 - self.mantissa_bits
        rounded = bits + np.uint32((1 << (drop - 1)) - 1) + ((bits >> np.uint32(drop)) & np.uint32(1))
        rounded &= np.uint32(0xFFFFFFFF ^ ((1 << drop) - 1))
        return np.where(np.isfinite(x), rounded.view(np.float32), x)


DTYPES: dict[str, DType] = {d.name: d for d in (DType("fp32", 4, 23), DType("fp16", 2, 10), DType("bf16", 2, 7))}
"""Formats by name. FP32 accumulators and LSE use `fp32`."""


def dtype(name: str) -> DType:
    """The format called `name`; ValueError lists the known ones."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}") from None
