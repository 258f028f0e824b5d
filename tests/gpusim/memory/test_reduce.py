"""Do reductions move what a plain-Python cache moves that adds at a line's home?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusim.counters import C
from gpusim.memory.access import read_tile, write_tile
from gpusim.memory.l2.policies import HOME_ALLOCATIONS, REPLACEMENTS, WRITE_POLICIES
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.oracle import Cache
from tests.gpusim.memory.systems import KIB, MIB, system
from tests.gpusim.memory.test_access import SMALL, Access, random_accesses, replay

SIDE = ("memory_side_cache.size=128KiB", "memory_side_cache.ways=4")


def mixed(memory: MemorySystem, seed: int, count: int) -> list[Access]:
    """Random accesses; half of what would be writes adds instead."""
    random = np.random.default_rng(seed)
    found = random_accesses(memory, random, count)
    return [replace(a, adding=a.writing and bool(random.random() < 0.5)) for a in found]


@pytest.mark.parametrize("policy", WRITE_POLICIES)
@pytest.mark.parametrize("shape", (SMALL, (*SMALL, *SIDE), ("l2.size=0",), (*SMALL, "l2.partitions=4")))
def test_do_reductions_agree_under_every_write_policy(policy: str, shape: tuple[str, ...]) -> None:
    memory = system(*shape, f"l2.write_policy={policy}", "l2.dirty_cap=8KiB")
    replay(memory, Cache(memory), mixed(memory, 21, 300))
    assert memory.values["counters"][:, C.L2_REDUCE].sum() > 0


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("allocation", HOME_ALLOCATIONS)
def test_do_reductions_agree_under_every_replacement_policy(replacement: str, allocation: str) -> None:
    memory = system(*SMALL, f"l2.replacement={replacement}", f"l2.home_allocation={allocation}")
    replay(memory, Cache(memory), mixed(memory, 22, 300))


def add(memory: MemorySystem, sm: int, size: int, now: float) -> float:
    return float(write_tile(memory.state, sm, 0, memory.tensors[0].base, 1, size, size, now, True))


def test_do_sums_stay_dirty_at_home_and_drop_the_copies_of_both_sides() -> None:
    """SMs 0 and 7 lie on different partitions; half of the lines are at home with each."""
    memory = system("l2.size=4MiB")
    base, size, n = memory.tensors[0].base, 64 * KIB, memory.values["counters"][0]
    write_tile(memory.state, 0, 0, base, 1, size, size, 0.0)
    read_tile(memory.state, 7, 0, base, 1, size, size, 0, 1, 1e4)
    add(memory, 0, size, 2e4)
    assert n[C.L2_REDUCE] == size // 32 and n[C.L2_MISS] == n[C.FAR_HIT] == n[C.FABRIC_READ] == size // 64
    assert memory.dirty_bytes()["A"] == size and n[C.DRAM_READ] == n[C.DRAM_WRITE] == 0
    for sm in (0, 7):  # each finds its own half at home, and must fetch the other again
        before = int(n[C.FAR_HIT])
        read_tile(memory.state, sm, 0, base, 1, size, size, 0, 1, 3e4 + sm * 1e4)
        assert n[C.FAR_HIT] - before == size // 64


def test_does_adding_to_what_is_not_in_the_l2_fetch_it_once() -> None:
    memory = system("l2.size=4MiB")
    n = memory.values["counters"][0]
    for number in range(3):
        add(memory, number, 64 * KIB, 1e4 * number)
    assert n[C.DRAM_READ] == n[C.L2_MISS] == 64 * KIB // 32
    assert n[C.L2_HIT] == 2 * 64 * KIB // 32 and n[C.SM_READ] == n[C.L2_READ] == 0


def test_do_slices_add_no_faster_than_their_rate() -> None:
    """All SMs add to the same megabyte over and over: what the slices of its homes can do is the limit."""
    memory = system("l2.size=4MiB", "l2.reduce_bandwidth=1B/clk")
    write_tile(memory.state, 0, 0, memory.tensors[0].base, 1, MIB, MIB, 0.0)
    start = 1e6
    done = max(add(memory, sm, MIB, start) for sm in range(8) for _ in range(4))
    gpu = memory.gpu
    rate = gpu.l2.slices * gpu.l2.reduce_bytes_per_clk * gpu.l2.clock_hz / gpu.sm.clock_hz
    assert done - start > 0.9 * 31 * MIB / rate
