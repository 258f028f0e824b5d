"""A tag array: sectored lines, sets kept in order of recency, and LRU on it.

A set is `ways` consecutive words, most recently used first, so LRU is a rotation: the search for a tag moves every word
it passes one place down, and the word it ends on (the hit, or the victim) is where the hole closes. A word holds tag
(24 bits), dirty sectors (4) and valid sectors (4).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.jit import njit

TAG_SHIFT = np.uint32(8)
VALID = np.uint32(0xF)
DIRTY = np.uint32(0xF0)
CLEAN = np.uint32(0xFFFFFF0F)
TAG = np.uint32(0xFFFFFF00)
EMPTY = np.uint32(0xFFFFFF00)
"""A tag word that matches no line: bits 31..8 tag, 7..4 dirty sectors, 3..0 valid sectors."""
_EMPTY = int(EMPTY)
MAX_TAG = (1 << 24) - 2

POPCOUNT = np.array([bin(b).count("1") for b in range(16)], np.int64)


@njit
def as_int(word: Any) -> int:
    """A tag word as a signed 64-bit number: mixing uint32 with int would give floats in compiled code."""
    return np.int64(word)  # type: ignore[return-value]


@njit
def is_line(victim: int) -> bool:
    """Whether a victim word (`touch`, `insert_at`) is a line that had to leave, rather than nothing or an empty way."""
    return victim != 0 and victim != _EMPTY


@njit
def touch(tags: Any, base: int, ways: int, tag: int, mask: int) -> tuple[int, int]:
    """Look a line up, promote it, and mark `mask` valid, evicting the least recently used line if it is absent.

    Returns:
        (sectors of `mask` that were valid before, victim word or 0).
    """
    want = np.uint32(tag) << TAG_SHIFT
    carry = tags[base]
    if carry & TAG == want:
        tags[base] = carry | np.uint32(mask)
        return as_int(carry) & mask, 0
    for way in range(1, ways):
        word = tags[base + way]
        tags[base + way] = carry
        if word & TAG == want:
            tags[base] = word | np.uint32(mask)
            return as_int(word) & mask, 0
        carry = word
    tags[base] = want | np.uint32(mask)
    return 0, as_int(carry)


@njit
def probe(tags: Any, base: int, ways: int, tag: int) -> int:
    """Valid sectors of a line, without promoting it (0 if absent)."""
    want = np.uint32(tag) << TAG_SHIFT
    for way in range(ways):
        if tags[base + way] & TAG == want:
            return as_int(tags[base + way] & VALID)
    return 0


@njit
def find(tags: Any, base: int, ways: int, tag: int) -> int:
    """Place of a line in its set, or -1."""
    want = np.uint32(tag) << TAG_SHIFT
    for way in range(ways):
        if tags[base + way] & TAG == want:
            return way
    return -1


@njit
def move(tags: Any, base: int, origin: int, target: int) -> None:
    """Move a set's word from place `origin` to `target`; those between close up."""
    word = tags[base + origin]
    for way in range(origin, target, -1):
        tags[base + way] = tags[base + way - 1]
    for way in range(origin, target):
        tags[base + way] = tags[base + way + 1]
    tags[base + target] = word


@njit
def invalidate(tags: Any, base: int, ways: int, tag: int, mask: int) -> None:
    """Drop sectors `mask` of a clean line, if it is there; its place in the order stays."""
    want = np.uint32(tag) << TAG_SHIFT
    for way in range(ways):
        if tags[base + way] & TAG == want:
            tags[base + way] &= np.uint32(0xFFFFFFFF ^ mask)
            return


@njit
def insert_at(tags: Any, base: int, ways: int, depth: int, tag: int, mask: int) -> int:
    """Put an absent line at place `depth` of the order of recency (ways - 1: next to go); returns the victim word."""
    last = base + ways - 1
    place_at = base + min(depth, ways - 1)
    while place_at > base and tags[place_at] == EMPTY and tags[place_at - 1] == EMPTY:
        place_at -= 1
    victim = tags[last]
    for way in range(last, place_at, -1):
        tags[way] = tags[way - 1]
    tags[place_at] = (np.uint32(tag) << TAG_SHIFT) | np.uint32(mask)
    return as_int(victim)


@njit
def oldest_dirty(tags: Any, base: int, ways: int) -> int:
    """Index of the least recently used dirty word of a set, or -1."""
    for way in range(ways - 1, -1, -1):
        if tags[base + way] & DIRTY:
            return base + way
    return -1
