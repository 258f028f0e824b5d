"""Tables of what is in flight: open requests of a coalescer, lines on their way to a partition.

A table has an entry for every value of a line's hash; an entry is good for one line at a time, and the later one wins.
"""

from __future__ import annotations

from gpusim.jit import njit

_BITS = 14
SLOTS = 1 << _BITS
"""Entries of a table: lines of 2 MiB. All SMs of a GPC together have a third of that in flight."""


@njit
def slot_of(line: int) -> int:
    """The entry of a line. Neighbours lie side by side; lines a power of two apart (K and V of a head) do not meet."""
    return (line ^ ((line >> _BITS) * 0x9E35)) & (SLOTS - 1)
