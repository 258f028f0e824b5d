"""Is the memory system's state built from the GPU file as its keys say?"""

from __future__ import annotations

import numpy as np
import pytest

from gpusim.errors import UserError
from gpusim.memory.access import write_tile
from tests.gpusim.memory.systems import KIB, MIB, system, tensors


def test_do_sets_ways_and_partitions_make_up_the_size() -> None:
    v = system("l2.size=1MiB", "l2.ways=8", "l2.data_share=1").values
    assert v["sets"] * v["ways"] * v["partitions"] * 128 == MIB == v["tags"].size * 128


def test_is_a_cache_smaller_than_one_set_no_cache() -> None:
    assert system("l2.size=0").values["cached"] == 0
    assert system("l2.size=2KiB", "l2.ways=16", "l2.data_share=1").values["cached"] == 0
    assert system("l2.size=4KiB", "l2.ways=16", "l2.data_share=1").values["cached"] == 1


def test_does_an_infinite_cache_hold_all_tensors_in_each_partition() -> None:
    memory = system("l2.size=inf", sizes=(3 * MIB, 5 * MIB))
    end = max(t.end for t in memory.tensors)
    assert memory.values["sets"] * memory.values["ways"] * 128 >= end


def test_are_other_line_sizes_refused() -> None:
    with pytest.raises(UserError, match=r"l2\.line"):
        system("l2.line=64B")


def test_is_a_cache_too_small_for_the_tags_of_its_tensors_refused() -> None:
    with pytest.raises(UserError, match="too small"):
        system("l2.size=4KiB", "l2.data_share=1", sizes=(4 << 30,))


def test_are_dirty_bytes_attributed_to_the_tensor_written() -> None:
    memory = system("l2.size=1MiB", sizes=(MIB, MIB))
    a, b = memory.tensors
    write_tile(memory.state, 0, 0, a.base, 1, 6 * KIB, 6 * KIB, 0.0)
    write_tile(memory.state, 5, 1, b.base, 4, 64, 256, 0.0)
    write_tile(memory.state, 2, 1, b.base, 4, 32, 256, 0.0)  # again: dirty once
    assert memory.dirty_bytes() == {"A": 6 * KIB, "B": 4 * 64}


def test_does_every_page_know_its_tensor() -> None:
    owners = system(sizes=(3 * MIB, 2, 5 * MIB)).values["tensor_of_page"]
    for t in tensors(3 * MIB, 2, 5 * MIB):
        assert np.all(owners[t.base >> 21 : ((t.end - 1) >> 21) + 1] == t.index)
