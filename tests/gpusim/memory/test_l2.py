"""Is a compiled tag array a sectored LRU cache, and are lines spread over sets and homes as documented?"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusim.memory.l2.home import home_mask, home_partition
from gpusim.memory.l2.policies import SLICE_HASHES
from gpusim.memory.l2.slice_hash import line_at, lines_at, place
from gpusim.memory.l2.tags import EMPTY, insert_at, invalidate, oldest_dirty, probe, touch
from tests.gpusim.memory.oracle import Line, Set


def mask_of(sectors: set[int]) -> int:
    return sum(1 << s for s in sectors)


def sectors_of_mask(mask: int) -> set[int]:
    return {s for s in range(4) if mask >> s & 1}


def word_of(tag: int, line: Line) -> int:
    return tag << 8 | mask_of(line.dirty) << 4 | mask_of(line.valid)


def words(one: Set) -> list[int]:
    """The words that the array must hold, most recent first, empty ways last."""
    held = [word_of(tag, line) for tag, line in reversed(one.lines.items())]
    return held + [int(EMPTY)] * (one.ways - len(held))


def victim_word(victim: tuple[int, Line] | None) -> int:
    return word_of(*victim) if victim else 0


@pytest.mark.parametrize("ways", (1, 2, 3, 16))
@pytest.mark.parametrize("seed", range(4))
def test_does_a_set_do_what_an_ordered_dictionary_does(ways: int, seed: int) -> None:
    random = np.random.default_rng([ways, seed])
    base = 2 * ways  # a set in the middle: its neighbours must stay as they are
    tags = np.full(5 * ways, EMPTY, np.uint32)
    model = Set(ways)
    for _ in range(1500):
        tag, mask = int(random.integers(0, 2 * ways + 2)), int(random.integers(1, 16))
        sectors = sectors_of_mask(mask)
        match int(random.integers(0, 6)):
            case 0 | 1:
                present, victim = model.touch(tag, sectors)
                found, word = touch(tags, base, ways, tag, mask)
                assert found == mask_of(present)
                assert word in {victim_word(victim), int(EMPTY) if victim is None else -1}
            case 2:
                held = model.lines[tag].valid if tag in model.lines else set()
                assert probe(tags, base, ways, tag) == mask_of(held)
            case 3 if tag not in model.lines:
                depth = int(random.integers(0, ways))
                word = insert_at(tags, base, ways, depth, tag, mask)
                victim = model.insert_at(depth, tag, sectors)
                assert word in {victim_word(victim), int(EMPTY) if victim is None else -1}
            case 4 if tag in model.lines and not model.lines[tag].dirty:
                invalidate(tags, base, ways, tag, mask)
                model.lines[tag].valid -= sectors
            case 5 if tag in model.lines:  # write: what access.py does after a touch
                model.touch(tag, sectors)
                touch(tags, base, ways, tag, mask)
                model.lines[tag].dirty |= sectors
                tags[base] |= np.uint32(mask << 4)
        assert tags[base : base + ways].tolist() == words(model)
        dirty = model.oldest_dirty()
        index = oldest_dirty(tags, base, ways)
        assert index == -1 if dirty is None else tags[index] >> 8 == dirty
    outside = np.concatenate([tags[:base], tags[base + ways :]])
    assert np.all(outside == EMPTY)


def test_does_an_evict_first_line_wait_for_room_before_it_displaces_another() -> None:
    tags = np.full(4, EMPTY, np.uint32)
    for tag in (7, 8, 9, 10):
        insert_at(tags, 0, 4, 3, tag, 15)
    assert sorted(int(w) >> 8 for w in tags) == [7, 8, 9, 10]
    assert int(insert_at(tags, 0, 4, 3, 11, 15)) >> 8 == 10  # the last one in is the first one out


def test_does_invalidating_an_absent_line_change_nothing() -> None:
    tags = np.full(4, EMPTY, np.uint32)
    touch(tags, 0, 4, 5, 15)
    before = tags.copy()
    invalidate(tags, 0, 4, 6, 15)
    assert np.array_equal(tags, before)


@given(sets=st.integers(1, 5000), first=st.integers(0, 1 << 30), hashing=st.sampled_from(list(SLICE_HASHES.values())))
@settings(max_examples=100, deadline=None)
def test_does_every_line_have_its_own_tag_and_set(sets: int, first: int, hashing: int) -> None:
    lines = [first + i for i in range(50)]
    places = [place(line, sets, hashing) for line in lines]
    assert len(set(places)) == len(lines)
    assert all(0 <= index < sets for _, index in places)
    assert [line_at(tag, index, sets, hashing) for tag, index in places] == lines
    tags, indices = np.array(places).T.copy()
    assert lines_at(tags, indices, sets, hashing).tolist() == lines


@pytest.mark.parametrize("hashing", SLICE_HASHES.values(), ids=SLICE_HASHES)
@pytest.mark.parametrize("sets", (1, 7, 64, 1000))
def test_do_consecutive_lines_fill_sets_evenly(sets: int, hashing: int) -> None:
    counts = np.bincount([place(line, sets, hashing)[1] for line in range(5 * sets)], minlength=sets)
    assert np.all(counts == 5)
    for line in range(3 * sets):  # and within a tag, the next line is in the next set
        (tag, index), (next_tag, next_index) = place(line, sets, hashing), place(line + 1, sets, hashing)
        assert tag != next_tag or next_index == (index + 1) % sets


def home(line: int, partitions: int = 2) -> int:
    spec = SimpleNamespace(partitions=partitions, home_mask=home_mask((12, 13, 15, 17, 19)))
    return int(home_partition.py_func(spec, line))  # type: ignore[attr-defined]


def test_is_the_home_the_parity_of_the_documented_address_bits() -> None:
    """Within a 2 MiB page: address bits 12, 13, 15, 17 and 19 (gpusim.memory.l2.home)."""
    for page in (0, 1, 5, 1000):
        flipped = home(page << 14)
        for granule in range(512):
            address = granule << 12
            parity = sum(address >> bit & 1 for bit in (12, 13, 15, 17, 19)) % 2
            lines = range(page << 14 | granule << 5, (page << 14 | granule << 5) + 32)
            assert {home(line) for line in lines} == {parity ^ flipped}


def test_is_exactly_half_of_every_aligned_8_kib_far() -> None:
    for first in range(0, 1 << 16, 64):
        assert sum(home(line) for line in range(first, first + 64)) == 32


def test_is_no_power_of_two_stride_within_a_page_camping_on_one_home() -> None:
    """Strides that only move bits that the parity ignores may; those that move a bit of it may not."""
    for bit in (12, 13, 15, 17, 19):
        lines = [(i << bit) >> 7 for i in range((1 << 21) >> bit)]
        homes = [home(line) for line in lines]
        assert sum(homes) * 2 == len(homes)


def test_do_pages_take_turns_without_a_pattern() -> None:
    flips = np.array([home(page << 14) for page in range(4096)])
    assert 0.45 < flips.mean() < 0.55


def test_is_a_single_partition_everybodys_home() -> None:
    assert {home(line, 1) for line in range(0, 1 << 16, 37)} == {0}
