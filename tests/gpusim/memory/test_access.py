"""Do tile reads and writes move what a plain-Python cache of two partitions moves?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpusim.counters import LEVELS, C
from gpusim.memory.access import THROUGH_L1, read_tile, sectors_of, write_tile
from gpusim.memory.l2.in_flight import slot_of
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.oracle import Cache, expected_lines, held_lines
from tests.gpusim.memory.systems import KIB, MIB, system
from traces.ops import HINTS

CHECKED = (
    C.L2_READ,
    C.L2_WRITE,
    C.L2_HIT,
    C.L2_MISS,
    C.FABRIC_READ,
    C.FABRIC_WRITE,
    C.FAR_HIT,
    C.DRAM_READ,
    C.DRAM_WRITE,
    C.L1_HIT,
    C.L1_MISS,
    C.MSC_HIT,
    C.MSC_MISS,
    C.L2_REDUCE,
)
SMALL = ("l2.size=64KiB", "l2.ways=4")


@dataclass(frozen=True)
class Access:
    """One tile access."""

    sm: int
    tensor: int
    writing: bool
    address: int
    runs: int
    run_bytes: int
    pitch: int
    hint: str = "normal"
    through_l1: bool = False
    adding: bool = False

    def pieces(self) -> list[tuple[int, int]]:
        starts = [self.address + r * self.pitch for r in range(self.runs)]
        return [(start, start + self.run_bytes) for start in starts]

    def perform(self, memory: MemorySystem, now: float) -> float:
        if self.writing:
            rest = (self.address, self.runs, self.run_bytes, self.pitch, now, self.adding)
            return float(write_tile(memory.state, self.sm, self.tensor, *rest))
        rest_read = (self.address, self.runs, self.run_bytes, self.pitch, 0, 1, now)
        flags = HINTS.index(self.hint) + (THROUGH_L1 if self.through_l1 else 0)
        return float(read_tile(memory.state, self.sm, self.tensor, *rest_read, flags))


def random_accesses(memory: MemorySystem, random: np.random.Generator, count: int) -> list[Access]:
    """Tiles of all shapes, aligned to elements only, crowded enough to hit, to evict and to cross lines of others."""
    found = []
    for _ in range(count):
        tensor = memory.tensors[int(random.integers(len(memory.tensors)))]
        aligned = 32 if random.random() < 0.5 else 2
        pitch = int(random.choice([64, 160, 256, 300, 4096]))
        run_bytes = (
            int(random.integers(1, pitch // aligned + 1)) * aligned
            if pitch < 4096
            else int(random.choice([32, 256, 700]))
        )
        runs = int(random.integers(1, 9))
        if random.random() < 0.3:
            runs, run_bytes = 1, int(random.integers(1, 9000))
        reach = min(tensor.size_bytes, int(random.choice([24 * KIB, 200 * KIB])))
        offset = int(random.integers(0, max(1, reach - runs * pitch - run_bytes) // aligned + 1)) * aligned
        writing = bool(random.random() < 0.35)
        found.append(
            Access(int(random.integers(8)), tensor.index, writing, tensor.base + offset, runs, run_bytes, pitch)
        )
    return found


def expected_counts(cache: Cache) -> NDArray[np.int64]:
    rows = [[cache.counts[c.name, t.name] for c in CHECKED] for t in cache.tensors]
    return np.array(rows, np.int64)


def counts(memory: MemorySystem) -> NDArray[np.int64]:
    table: NDArray[np.int64] = memory.values["counters"][:, list(CHECKED)]
    return table


def replay(memory: MemorySystem, cache: Cache, accesses: list[Access], every: int = 25) -> None:
    """Both do the accesses; every so often counters, dirty bytes and the whole contents of the cache must agree."""
    for number, access in enumerate(accesses):
        access.perform(memory, 10.0 * number)
        for piece in access.pieces():
            if access.adding:
                cache.reduce(access.sm, *piece)
            elif access.writing:
                cache.write(access.sm, *piece)
            else:
                cache.read(access.sm, *piece, access.hint, access.through_l1)
        if number % every == 0 or number + 1 == len(accesses):
            assert np.array_equal(counts(memory), expected_counts(cache)), f"after access {number}, {access}"
            assert memory.dirty_bytes() == cache.dirty_bytes()
            assert memory.values["dirty_sectors"].tolist() == cache.dirty_sectors
            if cache.cached:
                assert held_lines(memory) == expected_lines(cache)


@pytest.mark.parametrize("allocation", ("none", "evict_first", "middle", "allocate"))
@pytest.mark.parametrize("cap", ("1GiB", "8KiB", "0"))
def test_do_write_back_caches_of_two_partitions_agree(allocation: str, cap: str) -> None:
    memory = system(*SMALL, f"l2.home_allocation={allocation}", f"l2.dirty_cap={cap}")
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(1), 500))


@pytest.mark.parametrize("allocation", ("none", "evict_first", "middle", "allocate"))
def test_do_write_through_caches_agree(allocation: str) -> None:
    memory = system(*SMALL, f"l2.home_allocation={allocation}", "l2.write_policy=write_through")
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(2), 400))
    assert sum(memory.dirty_bytes().values()) == 0


@pytest.mark.parametrize("partitions", (1, 4))
def test_do_other_numbers_of_partitions_agree(partitions: int) -> None:
    memory = system(*SMALL, f"l2.partitions={partitions}", "l2.home_allocation=allocate")
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(3), 400))


@pytest.mark.parametrize("ways", (1, 3, 16))
def test_do_other_associativities_agree(ways: int) -> None:
    memory = system("l2.size=96KiB", f"l2.ways={ways}", "l2.home_allocation=evict_first", "l2.dirty_cap=16KiB")
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(4), 400))


@pytest.mark.parametrize("share", ("0.25", "0.5", "1"))
@pytest.mark.parametrize("replacement", ("lru", "srrip"))
def test_do_caches_that_clean_ahead_of_need_agree(share: str, replacement: str) -> None:
    memory = system("l2.size=64KiB", "l2.ways=4", f"l2.clean_share={share}", f"l2.replacement={replacement}")
    assert memory.gpu.l2.clean_ways == {"0.25": 1, "0.5": 2, "1": 3}[share]
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(8), 400))


@pytest.mark.parametrize("share", (0.0, 0.5, 1.0))
def test_is_so_much_dirty_after_a_pause_and_all_data_still_there(share: float) -> None:
    memory = system("l2.size=1MiB", "l2.dirty_cap=256KiB", f"l2.idle_dirty_share={share}")
    tile = (memory.tensors[0].base, 1, 128 * KIB, 128 * KIB)
    for start in (0, 128 * KIB):
        write_tile(memory.state, 0, 0, tile[0] + start, *tile[1:], 0.0)
    before = memory.dirty_sectors()
    memory.settle(1e6)
    assert (
        memory.dirty_sectors() == memory.values["dirty_sectors"].sum() == pytest.approx(share * before, abs=before / 50)
    )
    memory.reset_counters()
    read_tile(memory.state, 0, 0, tile[0], 1, 256 * KIB, 256 * KIB, 0, 1, 2e6)
    assert memory.values["counters"][:, C.L2_MISS].sum() == 0


def test_does_a_machine_without_l2_send_everything_to_dram() -> None:
    memory = system("l2.size=0")
    accesses = random_accesses(memory, np.random.default_rng(5), 300)
    replay(memory, Cache(memory), accesses)
    n = dict(zip(CHECKED, counts(memory).sum(axis=0), strict=True))
    assert n[C.DRAM_READ] == n[C.L2_READ] > 0 and n[C.DRAM_WRITE] == n[C.L2_WRITE] > 0


def test_does_a_flush_leave_nothing() -> None:
    memory = system(*SMALL)
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(6), 50))
    memory.flush()
    memory.reset_counters()
    replay(memory, Cache(memory), random_accesses(memory, np.random.default_rng(7), 50))


@given(address=st.integers(0, 500), runs=st.integers(1, 9), run_bytes=st.integers(1, 700), gap=st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_are_a_tiles_sectors_those_its_bytes_lie_in(address: int, runs: int, run_bytes: int, gap: int) -> None:
    pitch = run_bytes + gap
    touched = [{b // 32 for b in range(address + r * pitch, address + r * pitch + run_bytes)} for r in range(runs)]
    assert sectors_of(address, runs, run_bytes, pitch) == sum(map(len, touched))


@pytest.mark.parametrize("shares", (2, 3, 4))
@pytest.mark.parametrize(("runs", "run_bytes", "pitch"), ((1, 10_000, 10_000), (7, 256, 4096), (2, 64, 300)))
def test_do_multicast_shares_ask_for_each_sector_once_and_all_of_it_arrives(
    shares: int, runs: int, run_bytes: int, pitch: int
) -> None:
    memory = system("l2.size=1MiB")
    tile = (memory.tensors[0].base, runs, run_bytes, pitch)
    for share in range(shares):
        read_tile(memory.state, share, 0, *tile, share, shares, 0.0)
    n = memory.values["counters"][0]
    assert n[C.L2_READ] == n[C.DRAM_READ] == sectors_of(*tile)
    assert n[C.SM_READ] == n[C.SHARED_WRITE] == shares * sectors_of(*tile)


def test_are_reads_of_different_sectors_of_a_line_kept_apart_by_the_coalescer() -> None:
    """Two heads of 64-byte rows share every line of a token-major tensor; merging them would lose half of the bytes."""
    memory = system("l2.size=1MiB", "noc.coalescer=merge", "noc.merge_width=4")
    base = memory.tensors[0].base
    read_tile(memory.state, 0, 0, base, 8, 64, 128, 0, 1, 0.0)
    read_tile(memory.state, 1, 0, base + 64, 8, 64, 128, 0, 1, 0.0)
    assert memory.values["counters"][0, C.DRAM_READ] == memory.values["counters"][0, C.L2_READ] == 8 * 128 // 32


def test_are_lockstep_readers_of_one_partition_merged_up_to_the_width_and_not_beyond() -> None:
    memory = system("l2.size=1MiB", "noc.coalescer=merge", "noc.merge_width=4")
    for sm in range(4):
        read_tile(memory.state, sm, 0, memory.tensors[0].base, 1, 4096, 4096, 0, 1, 0.0)
    read_tile(memory.state, 0, 0, memory.tensors[0].base, 1, 4096, 4096, 0, 1, 0.0)
    n = memory.values["counters"][0]
    assert n[C.SM_READ] == 5 * 128 and n[C.L2_READ] == 2 * 128 and n[C.DRAM_READ] == 128


def test_are_readers_of_different_partitions_never_merged() -> None:
    memory = system("l2.size=1MiB", "noc.coalescer=merge", "noc.merge_width=4")
    for sm in (0, 7):
        read_tile(memory.state, sm, 0, memory.tensors[0].base, 1, 4096, 4096, 0, 1, 0.0)
    assert memory.values["counters"][0, C.L2_READ] == 2 * 128


def test_are_readers_far_apart_in_time_not_merged() -> None:
    memory = system("l2.size=1MiB", "noc.coalescer=merge", "noc.merge_width=4")
    for sm in (0, 1):
        read_tile(memory.state, sm, 0, memory.tensors[0].base, 1, 4096, 4096, 0, 1, sm * 1e6)
    assert memory.values["counters"][0, C.L2_READ] == 2 * 128


@pytest.mark.parametrize("missed", (False, True))
def test_are_requests_merged_while_the_l2_works_on_the_first_and_for_the_window_after(missed: bool) -> None:
    """After a hit only the window counts; a miss keeps its request open for what it takes on top.

    The window differs from line to line: it is 0.57 to 1.43 times its mean, each as often as the others.
    """
    memory = system("l2.size=1MiB", "noc.coalescer=merge", "noc.merge_width=4", "hbm.refresh=none")
    v, base = memory.values, memory.tensors[0].base
    mean, lines = v["merge_window"], 512

    def read(sm: int, line: int, now: float) -> int:
        before = int(v["counters"][0, C.L2_READ])
        read_tile(memory.state, sm, 0, base + 128 * line, 1, 32, 32, 0, 1, now)
        return int(v["counters"][0, C.L2_READ]) - before

    def merged(gap: float, start: float) -> float:
        """Share of lines of which a second read joins the first, `gap` after the L2 is done with what a hit spares."""
        if missed:
            memory.flush()
        joined = 0
        for line in range(lines):
            now = start + 1e4 * line
            assert read(0, line, now) == 1
            extra = v["merge_ready"][slot_of((base >> 7) + line)] - v["l2_latency"] - now
            assert extra >= v["dram_latency"] if missed else extra == 0
            joined += 1 - read(1, line, now + extra + gap * mean)
        return joined / lines

    read_tile(memory.state, 0, 0, base, 1, 128 * lines, 128 * lines, 0, 1, 0.0)
    shares = [merged(gap, 1e7 * (2 + number)) for number, gap in enumerate((0, 0.56, 0.785, 1.0, 1.215, 1.44))]
    assert shares[:2] == [1, 1] and shares[-1] == 0
    assert shares[2:5] == pytest.approx([0.75, 0.5, 0.25], abs=0.02)


@pytest.mark.parametrize("waiting", (0.0, 49_000.0))
def test_is_a_write_back_recorded_when_dram_has_room_for_it(waiting: float) -> None:
    memory = system("l2.size=1MiB", "l2.dirty_cap=0")
    v, now = memory.values, 1000.0
    v["bus_free"][:] = now + waiting
    write_tile(memory.state, 0, 0, memory.tensors[0].base, 1, 128, 128, now)
    row = v["timeline"][LEVELS.index("dram_write"), 0]
    assert np.flatnonzero(row).tolist() == [int((now + waiting) / v["bin_cycles"][0])] and row.sum() == 128


@pytest.mark.parametrize(
    ("allocation", "depth"), (("none", None), ("allocate", 0), ("middle", 10), ("evict_first", 15))
)
def test_does_a_far_read_take_its_place_in_the_order_of_the_home_set(allocation: str, depth: int | None) -> None:
    """One set of 16 lines per partition, that of the home full of lines that its own SMs read one after the other."""
    memory = system("l2.size=4KiB", "l2.data_share=1", f"l2.home_allocation={allocation}")
    model = Cache(memory)
    far = memory.gpu.sm.partition_of_sm.index(0)
    near = memory.gpu.sm.partition_of_sm.index(1)
    at_home = [line for line in range(memory.tensors[0].base // 128, memory.tensors[0].end // 128) if model.home(line)]
    own, visitor, later = at_home[:16], at_home[16], at_home[17:33]

    def read(sm: int, line: int) -> None:
        read_tile(memory.state, sm, 0, 128 * line, 1, 32, 32, 0, 1, 0.0)

    def held() -> list[int]:
        """Lines of the home's set, most recent first."""
        return [tag for tag, _, _ in held_lines(memory)[1, 0]][::-1]

    for line in own:
        read(near, line)
    order = own[::-1]
    assert held() == order
    read(far, visitor)
    if depth is not None:
        order = [*order[:depth], visitor, *order[depth:-1]]
    assert held() == order
    stays = 0 if depth is None else 15 - depth
    for number, line in enumerate(later):  # reads at home push it out one place each
        read(near, line)
        assert (visitor in held()) == (number < stays)


def test_does_a_far_read_beside_a_dirty_sector_leave_one_copy_of_the_line_at_home() -> None:
    """Evict-first allocation meets a line that is already there with other sectors: no second tag may appear."""
    memory = system("l2.size=64KiB", "l2.ways=4", "l2.home_allocation=evict_first")
    base = memory.tensors[0].base
    for start in (base, base + 4096):  # of two granules, one is at home with SM 0, the other with SM 7
        for writer, reader in ((0, 7), (7, 0)):
            memory.flush()
            write_tile(memory.state, writer, 0, start, 1, 32, 32, 0.0)
            read_tile(memory.state, reader, 0, start + 32, 1, 32, 32, 0, 1, 0.0)
            for held in held_lines(memory).values():
                assert len({tag for tag, _, _ in held}) == len(held)


@pytest.mark.parametrize("allocation", ("none", "evict_first", "middle", "allocate"))
def test_does_an_infinite_cache_read_each_sector_from_dram_once(allocation: str) -> None:
    memory = system("l2.size=inf", f"l2.home_allocation={allocation}", sizes=(MIB, MIB))
    random = np.random.default_rng(8)
    touched: set[int] = set()
    written: set[int] = set()
    missed = 0
    for number, access in enumerate(random_accesses(memory, random, 400)):
        access.perform(memory, 10.0 * number)
        for start, end in access.pieces():
            sectors = set(range(start // 32, (end - 1) // 32 + 1))
            missed += 0 if access.writing else len(sectors - touched)
            touched |= sectors
            written |= sectors if access.writing else set()
    totals = memory.values["counters"].sum(axis=0)
    assert totals[C.DRAM_READ] == missed and totals[C.DRAM_WRITE] == 0
    assert sum(memory.dirty_bytes().values()) == 32 * len(written)


@pytest.mark.parametrize("writing", (False, True))
def test_is_no_access_faster_than_its_port(writing: bool) -> None:
    memory = system("l2.size=1MiB")
    sm, now = memory.gpu.sm, 0.0
    rate = sm.write_port_bytes_per_clk if writing else sm.read_port_bytes_per_clk
    done = 0.0
    for number in range(8):  # all issued at once, so the port is what they share
        offset = 32 * KIB * (number % 2)
        access = Access(0, 0, writing, memory.tensors[0].base + offset, 1, 32 * KIB, 32 * KIB)
        done = max(done, access.perform(memory, now))
    assert done >= 8 * 32 * KIB / rate


def test_does_a_hit_come_back_sooner_than_a_miss_and_a_near_line_sooner_than_a_far_one() -> None:
    memory = system("l2.size=1MiB")
    base = memory.tensors[0].base

    def latency(sm: int, address: int, now: float) -> float:
        return float(read_tile(memory.state, sm, 0, address, 1, 32, 32, 0, 1, now)) - now

    first = {address: latency(0, address, 1e5 * (2 + i)) for i, address in enumerate((base, base + 4096))}
    again = latency(0, base, 5e5), latency(0, base + 4096, 6e5)
    at_home, far = sorted(first, key=lambda address: first[address])
    assert again[0] == again[1] < first[at_home] < first[far]  # one granule's home is near SM 0, the other's is not
    assert again[0] < latency(7, at_home, 7e5) < first[far]  # found in the line's home, from the other side


@pytest.mark.parametrize("where", ("near", "far home"))
def test_does_a_read_of_a_line_on_its_way_wait_for_it(where: str) -> None:
    memory = system("l2.size=1MiB", "noc.coalescer=none")
    base, partition = memory.tensors[0].base, memory.gpu.sm.partition_of_sm
    other = next(sm for sm in range(8) if (partition[sm] == partition[0]) == (where == "near") and sm != 0)

    def latency(sm: int, address: int, now: float) -> float:
        return float(read_tile(memory.state, sm, 0, address, 1, 32, 32, 0, 1, now)) - now

    lines = [base + 4096 * granule for granule in range(8)]
    if where == "far home":  # those whose home is near SM 0
        fabric = memory.gpu.noc.fabric_latency_cycles
        misses = {line: latency(0, line + 2048, 1e5 + 1e4 * i) for i, line in enumerate(lines)}
        lines = [line for line in lines if misses[line] < min(misses.values()) + fabric / 2]
    assert lines
    for number, line in enumerate(lines):
        now, later = 1e6 + 1e5 * number, 100.0
        first = latency(0, line, now)
        on_its_way = latency(other, line, now + later)
        crossing = memory.gpu.noc.fabric_latency_cycles if where == "far home" else 0.0
        assert on_its_way == pytest.approx(first - later + crossing)
        assert latency(other, line, now + 5e4) == pytest.approx(memory.gpu.l2.latency_cycles, abs=1)  # it is there now
