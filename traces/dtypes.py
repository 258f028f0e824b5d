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
        mantissa_bits: explicit fraction bits, for rounding in the numeric driver (0: a whole number).
        largest: largest finite value; beyond it int8 and fp8 saturate. 0 where float32's range applies.
    """

    name: str
    element_bytes: int
    mantissa_bits: int
    largest: float = 0.0

    @property
    def quantised(self) -> bool:
        """Whether tensors of this format need scales to hold attention's numbers."""
        return self.largest > 0

    def round(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        """Round `values` to this format (nearest even) and return them as float32."""
        x = np.asarray(values, dtype=np.float32)
        if self.name in ("fp32", "int32"):
            return x
        if self.name == "fp16":
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float32)
        if self.quantised:
            return self._round_quantised(x)
        bits = x.view(np.uint32)
        drop = 23 - self.mantissa_bits
        rounded = bits + np.uint32((1 << (drop - 1)) - 1) + ((bits >> np.uint32(drop)) & np.uint32(1))
        rounded &= np.uint32(0xFFFFFFFF ^ ((1 << drop) - 1))
        return np.where(np.isfinite(x), rounded.view(np.float32), x)

    def _round_quantised(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Nearest even with saturation; fp8 E4M3 has exponents from 2^-6 and subnormals down to 2^-9."""
        clipped = np.clip(x, -self.largest, self.largest)
        if self.mantissa_bits == 0:
            return (np.rint(clipped) + 0).astype(np.float32)  # there is no -0
        exponent = np.maximum(np.frexp(clipped)[1] - 1, E4M3_LEAST_EXPONENT)
        step = np.ldexp(np.float32(1), exponent - self.mantissa_bits)
        return (np.rint(clipped / step) * step).astype(np.float32)


E4M3_LEAST_EXPONENT = -6
"""Exponent of the smallest normal E4M3 number (OCP 8-bit floating point specification, revision 1.0)."""

_FORMATS = (
    DType("fp32", 4, 23),
    DType("fp16", 2, 10),
    DType("bf16", 2, 7),
    DType("fp8", 1, 3, largest=448.0),
    DType("int8", 1, 0, largest=127.0),
    DType("int32", 4, 23),
)
DTYPES: dict[str, DType] = {d.name: d for d in _FORMATS}
"""Formats by name. `fp8` is E4M3; FP32 accumulators and LSE use `fp32`; block tables and lengths `int32`."""


def dtype(name: str) -> DType:
    """The format called `name`; ValueError lists the known ones."""
    try:
        return DTYPES[name]
    except KeyError:
        allowed = ", ".join(d for d in DTYPES if d != "int32")
        raise ValueError(f"dtype {name!r} is not one of {allowed}") from None
