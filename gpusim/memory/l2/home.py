"""Which partition a line's DRAM belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpusim.jit import njit

LINE_SHIFT = 7


def home_mask(address_bits: Iterable[int]) -> int:
    """The bits of a line number that stand for `address_bits`."""
    return sum(1 << (bit - LINE_SHIFT) for bit in set(address_bits))


@njit
def home_partition(m: Any, line: int) -> int:
    """Partition whose DRAM holds the line.

    Of two, the parity of the address bits `l2.home_bits`, flipped or not per 2 MiB page. Measured on an H200 with
    atomics, which execute at a line's home: within each 2 MiB page the home is the parity of address bits 12, 13, 15,
    17 and 19 (experiments/measured/h200/partitions.json); the flip is by physical bits that a program cannot see, here
    a hash of the page. Of another number, a hash of the 4 KiB granule.
    """
    if m.partitions == 1:
        return 0
    if m.partitions == 2:
        page = line >> 14
        bits = line & m.home_mask
        bits ^= bits >> 16
        bits ^= bits >> 8
        bits ^= bits >> 4
        bits ^= bits >> 2
        return ((bits ^ (bits >> 1)) ^ ((page * 2654435761 & 0xFFFFFFFF) >> 16)) & 1
    x = ((line >> 5) * 2654435761) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    return x % m.partitions
