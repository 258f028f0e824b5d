"""Re-reference predictions of a set kept in order: four groups of lines, soonest first, of which only sizes are stored.

A set's word packs the four sizes, 16 bits each, of the lines behind the persisting ones. Ageing by one is then a shift.
"""

from __future__ import annotations

from typing import Any

from gpusim.jit import njit

BITS, SIZE = 16, 0xFFFF
SOON, LONG, DISTANT = 0, 2, 3


@njit
def group_of(ages: int, place: int) -> int:
    """The group in which the line at `place` is."""
    for group in range(DISTANT):
        place -= (ages >> (BITS * group)) & SIZE
        if place < 0:
            return group
    return DISTANT


@njit
def start_of(ages: int, group: int) -> int:
    """Place of the first line of a group."""
    place = 0
    for before in range(group):
        place += (ages >> (BITS * before)) & SIZE
    return place


@njit
def enter(m: Any, row: int, group: int) -> None:
    """A line joined `group` of set `row`."""
    m.ages[row] += 1 << (BITS * group)


@njit
def leave(m: Any, row: int, place: int) -> None:
    """The line at `place` left."""
    m.ages[row] -= 1 << (BITS * group_of(m.ages[row], place))


@njit
def age(m: Any, row: int) -> None:
    """Make all lines a full set older, until one is distant."""
    while m.ages[row] >> (BITS * DISTANT) == 0:
        m.ages[row] <<= BITS
