"""Where a line lies: its set, and with it its slice (set modulo slices), for any number of either.

`sets` consecutive lines share a tag and fill consecutive sets; the slice hash says where in the ring of sets they
begin, so that lines a power of two apart do not all meet in one set and one slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.jit import njit
from gpusim.memory.l2.policies import LINEAR, MIX


@njit
def rotation(tag: int, sets: int, hashing: int) -> int:
    """Set of a tag's first line.

    `mix`: anywhere, by a multiplicative hash (Knuth). `linear`: set 0, plain address bits. `xor`: the two halves of the
    tag, xored, so that each next tag begins one set away from the last.
    """
    if hashing == MIX:
        return ((tag * 2654435761) & 0xFFFFFFFF) * sets >> 32
    if hashing == LINEAR:
        return 0
    return ((tag ^ (tag >> 12)) & 0xFFF) % sets


@njit
def place(line: int, sets: int, hashing: int) -> tuple[int, int]:
    """(tag, set) of a line: consecutive lines fill consecutive sets."""
    tag = line // sets
    index = line - tag * sets + rotation(tag, sets, hashing)
    if index >= sets:
        index -= sets
    return tag, index


@njit
def line_at(tag: int, index: int, sets: int, hashing: int) -> int:
    """The line whose place is (`tag`, `index`)."""
    offset = index - rotation(tag, sets, hashing)
    return tag * sets + (offset + sets if offset < 0 else offset)


@njit
def lines_at(tags: Any, indices: Any, sets: int, hashing: int) -> Any:
    """`line_at` of arrays."""
    lines = np.empty(len(tags), np.int64)
    for i in range(len(tags)):
        lines[i] = line_at(tags[i], indices[i], sets, hashing)
    return lines
