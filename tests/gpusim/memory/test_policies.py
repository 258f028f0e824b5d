"""Does every policy, hint and extra cache do what a plain-Python cache does that was written from the documents?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusim.counters import C
from gpusim.memory.access import THROUGH_L1, read_tile
from gpusim.memory.l2.policies import HOME_ALLOCATIONS, REPLACEMENTS, SLICE_HASHES, WRITE_POLICIES
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.oracle import Cache
from tests.gpusim.memory.systems import KIB, MIB, system
from tests.gpusim.memory.test_access import SMALL, Access, random_accesses, replay
from traces.ops import HINTS

SIDE = ("memory_side_cache.size=128KiB", "memory_side_cache.ways=4")


def hinted(memory: MemorySystem, seed: int, count: int, through_l1: bool = False) -> list[Access]:
    """Random accesses, half of whose loads have a hint."""
    random = np.random.default_rng(seed)
    found = random_accesses(memory, random, count)
    hints = [str(random.choice(HINTS)) if random.random() < 0.5 else "normal" for _ in found]
    plain = [through_l1 and bool(random.random() < 0.5) for _ in found]
    return [a if a.writing else replace(a, hint=h, through_l1=p) for a, h, p in zip(found, hints, plain, strict=True)]


@pytest.mark.parametrize("allocation", HOME_ALLOCATIONS)
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_do_replacement_policies_agree(replacement: str, allocation: str) -> None:
    memory = system(*SMALL, f"l2.replacement={replacement}", f"l2.home_allocation={allocation}", "l2.dirty_cap=8KiB")
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(11), 300))


@pytest.mark.parametrize("persisting", ("0", "20KiB", "40KiB", "1MiB"))
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_do_hints_agree_under_every_replacement_policy(replacement: str, persisting: str) -> None:
    memory = system("l2.size=64KiB", "l2.ways=6", f"l2.replacement={replacement}", f"l2.persisting={persisting}")
    replay(memory, Cache(memory), hinted(memory, 12, 400))


@pytest.mark.parametrize("replacement", ("lru", "srrip"))
@pytest.mark.parametrize("policy", WRITE_POLICIES)
def test_do_write_policies_agree(policy: str, replacement: str) -> None:
    memory = system(*SMALL, f"l2.write_policy={policy}", f"l2.replacement={replacement}")
    replay(memory, Cache(memory), hinted(memory, 13, 300))
    assert policy == "write_back" or sum(memory.dirty_bytes().values()) == 0


@pytest.mark.parametrize("hashing", SLICE_HASHES)
@pytest.mark.parametrize(("partitions", "slices"), ((2, 94), (1, 94), (1, 47), (1, 1), (3, 93), (3, 3), (5, 95)))
def test_do_any_numbers_of_partitions_and_slices_agree(partitions: int, slices: int, hashing: str) -> None:
    shape = (f"l2.partitions={partitions}", f"l2.slices={slices}", f"l2.slice_hash={hashing}")
    memory = system(*SMALL, *shape, *SIDE)
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(14), 200))
    v = memory.values
    assert v["slices"] * v["partitions"] == len(v["slice_free"]) == slices


@pytest.mark.parametrize("policy", WRITE_POLICIES)
@pytest.mark.parametrize("size", ("0", "64KiB"))
def test_do_memory_side_caches_agree(size: str, policy: str) -> None:
    memory = system(f"l2.size={size}", "l2.ways=4", f"l2.write_policy={policy}", "l2.dirty_cap=4KiB", *SIDE)
    replay(memory, Cache(memory), hinted(memory, 15, 400))
    assert memory.values["counters"][:, C.MSC_HIT].sum() > 0


def test_do_first_level_caches_agree() -> None:
    memory = system(*SMALL, "l1.size=256KiB")
    memory.run_at(memory.gpu, 240 * KIB)
    replay(memory, Cache(memory), hinted(memory, 16, 400, through_l1=True))
    assert memory.values["counters"][:, C.L1_HIT].sum() > 0


def reread(hint: str, *overrides: str, passes: int = 6) -> int:
    """Bytes of a small tensor A read from DRAM when each pass over it is followed by a stream twice the L2's size."""
    memory = system("l2.size=256KiB", "l2.partitions=1", "l2.ways=16", *overrides, sizes=(64 * KIB, 4 * MIB))
    a, stream = memory.tensors
    kept, passing = (hint, "normal") if hint == "evict_last" else ("normal", hint)
    for number in range(passes):
        for tensor, offset, size, how in ((a, 0, 64 * KIB, kept), (stream, 512 * KIB * number, 512 * KIB, passing)):
            read_tile(memory.state, 0, tensor.index, tensor.base + offset, 1, size, size, 0, 1, 1e6, HINTS.index(how))
    return 32 * int(memory.values["counters"][a.index, C.DRAM_READ])


def test_does_a_stream_thrash_reused_data_unless_a_hint_says_which_is_which() -> None:
    assert reread("normal") == 6 * 64 * KIB
    assert reread("evict_first") <= 2 * 64 * KIB
    assert reread("no_allocate") == 64 * KIB
    assert reread("evict_last") == 6 * 64 * KIB  # without a set-aside it is only the most recent
    assert reread("evict_last", "l2.persisting=128KiB") == 64 * KIB
    assert reread("evict_last", "l2.persisting=16KiB") > 64 * KIB  # too small for it


def test_do_scan_resistant_policies_keep_part_of_a_loop_that_is_larger_than_the_cache() -> None:
    def hits(replacement: str) -> int:
        memory = system("l2.size=256KiB", "l2.partitions=1", f"l2.replacement={replacement}", sizes=(MIB,))
        for _ in range(8):
            read_tile(memory.state, 0, 0, memory.tensors[0].base, 1, 400 * KIB, 400 * KIB, 0, 1, 0.0)
        return int(memory.values["counters"][0, C.L2_HIT])

    assert hits("lru") == hits("fifo") == 0
    assert hits("lip") >= hits("bip") > hits("random") > 0


def test_does_a_hit_in_the_first_level_take_its_latency_and_nothing_of_the_port_or_the_l2() -> None:
    memory = system("l2.size=1MiB")
    memory.run_at(memory.gpu)
    tile = (memory.tensors[0].base, 1, 4096, 4096, 0, 1)
    assert read_tile(memory.state, 3, 0, *tile, 0.0, THROUGH_L1) > memory.gpu.l2.latency_cycles
    before = memory.values["counters"][0].copy()
    assert read_tile(memory.state, 3, 0, *tile, 1e5, THROUGH_L1) == 1e5 + memory.gpu.l1.latency_cycles
    grown = memory.values["counters"][0] - before
    assert grown[C.L1_HIT] == 128 and grown[C.SM_READ] == grown[C.L2_READ] == grown[C.L1_MISS] == 0
    read_tile(memory.state, 3, 0, *tile, 2e5)  # a bulk copy goes past it
    assert memory.values["counters"][0, C.SM_READ] == before[C.SM_READ] + 128
    memory.run_at(memory.gpu)  # the next kernel starts with an empty one
    read_tile(memory.state, 3, 0, *tile, 3e5, THROUGH_L1)
    assert memory.values["counters"][0, C.L1_MISS] == 256


def test_is_an_access_to_the_memory_side_cache_between_l2_and_dram_in_time() -> None:
    memory = system("l2.size=64KiB", "l2.partitions=1", "memory_side_cache.size=1MiB", "memory_side_cache.latency=500")
    base = memory.tensors[0].base

    def latency(now: float) -> float:
        return float(read_tile(memory.state, 0, 0, base, 1, 32, 32, 0, 1, now)) - now

    from_dram, from_l2 = latency(1e5), latency(2e5)
    memory.values["tags"][:] = 0xFFFFFF00
    assert from_l2 < latency(3e5) < from_dram
    assert memory.values["counters"][0, C.MSC_HIT] == 1
