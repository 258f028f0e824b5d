"""Looking lines up in sets in order of recency, under any replacement policy and with load hints.

A set's order begins with its persisting lines (`m.pinned` of them): lines loaded `evict_last` while the set-aside had
room. The others are kept in order behind them, and only they are victims. LRU without hints and set-aside, the common
case, takes a short cut through `tags.touch` and `tags.insert_at`, with the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.jit import njit
from gpusim.memory.l2.ages import DISTANT, LONG, SOON, age, enter, group_of, leave, start_of
from gpusim.memory.l2.policies import EVICT_FIRST, EVICT_LAST, NO_ALLOCATE
from gpusim.memory.l2.replacement.rules import (
    BIMODAL_TOP,
    FILL_BIMODAL,
    FILL_BOTTOM,
    FILL_LONG,
    HIT_TO_TOP,
    VICTIM_ANY,
)
from gpusim.memory.l2.tags import EMPTY, TAG_SHIFT, as_int, find, move

BY_POLICY = -1
"""Depth of a fill that the replacement policy decides."""


@njit
def look_up(m: Any, row: int, tag: int, mask: int, hint: int) -> tuple[int, int]:
    """Look a line up in set `row` (partition * sets + set), and bring in what is missing.

    Returns:
        (sectors of `mask` that were valid before, victim word or 0).
    """
    base = row * m.ways
    place = find(m.tags, base, m.ways, tag)
    if place < 0:
        return 0, 0 if hint == NO_ALLOCATE else fill(m, row, tag, mask, hint, BY_POLICY)
    word = m.tags[base + place]
    if hint != NO_ALLOCATE:
        m.tags[base + place] = word | np.uint32(mask)
    _hit(m, row, place, hint)
    return as_int(word) & mask, 0


@njit
def pass_home(m: Any, row: int, tag: int, mask: int, held: int, hint: int) -> int:
    """Keep sectors that pass the line's home, where `l2.home_allocation` or the hint says; returns the victim word."""
    if held or hint == NO_ALLOCATE:
        return look_up(m, row, tag, mask, hint)[1]
    return fill(m, row, tag, mask, hint, m.home_depth)


@njit
def draw(m: Any, count: int) -> int:
    """A number below `count`: the next of a linear congruential sequence, the same in every run."""
    m.dice[0] = (m.dice[0] * 1103515245 + 12345) & 0x7FFFFFFF
    return (m.dice[0] >> 15) % count


@njit
def _hit(m: Any, row: int, place: int, hint: int) -> None:
    """Move the line at `place`, which was hit."""
    first = m.pinned[row]
    if hint in (EVICT_FIRST, NO_ALLOCATE):
        return
    if place < first:
        move(m.tags, row * m.ways, place, 0)
    elif hint == EVICT_LAST and m.pin_ways > 0:
        if m.ages_kept:
            leave(m, row, place - first)
        _pin(m, row, place)
    elif m.hit_rule == HIT_TO_TOP or hint == EVICT_LAST:
        if m.ages_kept:
            leave(m, row, place - first)
            enter(m, row, SOON)
        move(m.tags, row * m.ways, place, first)


@njit
def _pin(m: Any, row: int, place: int) -> None:
    """Move a line in front of the persisting ones; the oldest of them makes room if the set-aside is full."""
    move(m.tags, row * m.ways, place, 0)
    if m.pinned[row] < m.pin_ways:
        m.pinned[row] += 1
    elif m.ages_kept:
        enter(m, row, SOON)


@njit
def fill(m: Any, row: int, tag: int, mask: int, hint: int, depth: int) -> int:
    """Bring an absent line into a set, at place `depth` of its order or `BY_POLICY`; returns the victim word."""
    base, first, last = row * m.ways, m.pinned[row], m.ways - 1
    gone = last
    full = m.tags[base + last] != EMPTY
    if full:
        if m.victim_rule == VICTIM_ANY:
            gone = first + draw(m, m.ways - first)
        if m.ages_kept:
            age(m, row)
            leave(m, row, last - first)
    victim = as_int(m.tags[base + gone])
    m.tags[base + gone] = (np.uint32(tag) << TAG_SHIFT) | np.uint32(mask)
    if hint == EVICT_LAST and m.pin_ways > 0:
        _pin(m, row, gone)
        return victim
    place = _entry(m, row, hint, depth)
    while place > first and m.tags[base + place - 1] == EMPTY:
        place -= 1
    if m.ages_kept:
        enter(m, row, _group(m, row, hint, depth, place - first))
    move(m.tags, base, gone, place)
    return victim


@njit
def _entry(m: Any, row: int, hint: int, depth: int) -> int:
    """Place at which a fill enters."""
    first, last = m.pinned[row], m.ways - 1
    if hint == EVICT_FIRST:
        return last
    if hint == EVICT_LAST:
        return first
    if depth != BY_POLICY:
        return max(depth, first)
    if m.fill_rule == FILL_BOTTOM or (m.fill_rule == FILL_BIMODAL and draw(m, BIMODAL_TOP) != 0):
        return last
    if m.fill_rule == FILL_LONG:
        return first + start_of(m.ages[row], LONG)
    return first


@njit
def _group(m: Any, row: int, hint: int, depth: int, place: int) -> int:
    """Age group that a fill joins at `place` behind the persisting lines."""
    if hint == EVICT_FIRST:
        return DISTANT
    if hint == EVICT_LAST:
        return SOON
    return LONG if depth == BY_POLICY else group_of(m.ages[row], place)
