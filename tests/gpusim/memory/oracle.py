"""A plain-Python model of the L2, written from the documentation: what `gpusim.memory` must do, without time.

Two (or more) partitions, each a sectored LRU cache. A reader asks its own partition; what is missing there comes from
the line's home partition, and what is missing there too from DRAM. Writes never miss: they land in the writer's
partition and at home, where they stay dirty, and copies elsewhere are dropped. Reductions happen at home, on data that
must be there, and drop all copies elsewhere. Nothing here shares code with the
compiled kernels but the two arbitrary hashes (`place`, `home_partition`), which have tests of their own.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

from gpusim.memory.l2.home import home_partition
from gpusim.memory.l2.slice_hash import place
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.policy_oracle import Dice, Entry, PolicySet

SECTORS = 4
Sectors = set[int]


@dataclass
class Line:
    """What a cache holds of one line: sector numbers 0 to 3."""

    valid: Sectors = field(default_factory=set)
    dirty: Sectors = field(default_factory=set)


class Set:
    """One set: lines in order of recency, the least recently used first."""

    def __init__(self, ways: int) -> None:
        self.ways = ways
        self.lines: OrderedDict[int, Line] = OrderedDict()

    def touch(self, key: int, sectors: Sectors) -> tuple[Sectors, tuple[int, Line] | None]:
        """(which of `sectors` were valid, the evicted line); afterwards all are, in the most recent place."""
        victim = None
        if key not in self.lines:
            if len(self.lines) == self.ways:
                victim = self.lines.popitem(last=False)
            self.lines[key] = Line()
        line = self.lines[key]
        self.lines.move_to_end(key)
        present = line.valid & sectors
        line.valid |= sectors
        return present, victim

    def insert_at(self, depth: int, key: int, sectors: Sectors) -> tuple[int, Line] | None:
        """Put an absent line behind the `depth` most recent ones; returns the evicted line, if the set was full."""
        assert key not in self.lines
        victim = self.lines.popitem(last=False) if len(self.lines) == self.ways else None
        older = list(self.lines)[: max(0, len(self.lines) - depth)]
        self.lines[key] = Line(set(sectors))
        for one in (key, *reversed(older)):
            self.lines.move_to_end(one, last=False)
        return victim

    def oldest_dirty(self) -> int | None:
        return next((key for key, line in self.lines.items() if line.dirty), None)


def lines_of(start: int, end: int) -> Iterator[tuple[int, Sectors]]:
    """(line, sectors) that bytes [start, end) touch, in address order."""
    found: dict[int, Sectors] = {}
    for sector in range(start // 32, -(-end // 32)):
        found.setdefault(sector // SECTORS, set()).add(sector % SECTORS)
    yield from found.items()


class Cache:
    """The functional behaviour of a whole memory system, counted in sectors per tensor under the counters' names."""

    def __init__(self, memory: MemorySystem) -> None:
        v, l2 = memory.values, memory.gpu.l2
        self.partitions, self.ways, self.cached = l2.partitions, l2.ways, bool(v["cached"])
        self.home_allocation, self.write_policy = l2.home_allocation, l2.write_policy
        self.through, self.around = l2.write_policy != "write_back", l2.write_policy == "write_around"
        self.clean_ways = l2.clean_ways
        self.cap_sectors = int(l2.dirty_cap_bytes) // 32 // l2.partitions
        self.lines_per_way, self.hashing = v["sets"], v["slice_hash"]
        self.partition_of_sm = memory.gpu.sm.partition_of_sm
        self.tensors = memory.tensors
        dice = Dice()
        kept = l2.persisting_ways
        self.sets: dict[tuple[int, int], PolicySet] = defaultdict(
            lambda: PolicySet(self.ways, l2.replacement, kept, dice)
        )
        self.side_lines, self.side_ways = v["side_sets"], v["side_ways"]
        self.side: dict[tuple[int, int], Set] = defaultdict(lambda: Set(self.side_ways))
        self.l1_lines, self.l1_ways = v["l1_sets"], v["l1_ways"]
        self.l1: dict[tuple[int, int], Set] = defaultdict(lambda: Set(self.l1_ways))
        self.dirty_sectors = [0] * l2.partitions
        self.counts: Counter[tuple[str, str]] = Counter()
        self._hash = SimpleNamespace(partitions=l2.partitions, home_mask=v["home_mask"])

    def read(self, sm: int, start: int, end: int, hint: str = "normal", through_l1: bool = False) -> None:
        for line, sectors in lines_of(start, end):
            wanted = self._ask_l1(sm, line, sectors) if through_l1 else sectors
            if wanted:
                self._read_line(self.partition_of_sm[sm], line, wanted, hint)

    def write(self, sm: int, start: int, end: int) -> None:
        for line, sectors in lines_of(start, end):
            self._write_line(self.partition_of_sm[sm], line, sectors)

    def reduce(self, sm: int, start: int, end: int) -> None:
        for line, sectors in lines_of(start, end):
            self._reduce_line(self.partition_of_sm[sm], line, sectors)

    def dirty_bytes(self) -> dict[str, int]:
        totals = {t.name: 0 for t in self.tensors}
        dirty = {
            (line, sector)
            for one in (*self.sets.values(), *self.side.values())
            for line, held in one.lines.items()
            for sector in held.dirty
        }
        for line, _ in dirty:
            totals[self.owner(line)] += 32
        return totals

    def owner(self, line: int) -> str:
        return next(t.name for t in self.tensors if t.base <= 128 * line < t.end)

    def home(self, line: int) -> int:
        return int(home_partition.py_func(self._hash, line))  # type: ignore[attr-defined]

    def set_of(self, partition: int, line: int) -> PolicySet:
        return self.sets[partition, int(place.py_func(line, self.lines_per_way, self.hashing)[1])]  # type: ignore[attr-defined]

    def _count(self, counter: str, line: int, sectors: Sectors) -> None:
        self.counts[counter, self.owner(line)] += len(sectors)

    def _ask_l1(self, sm: int, line: int, sectors: Sectors) -> Sectors:
        present: Sectors = set()
        if self.l1_lines:
            index = int(place.py_func(line, self.l1_lines, 0)[1])  # type: ignore[attr-defined]
            present = self.l1[sm, index].touch(line, sectors)[0]
        self._count("L1_HIT", line, present)
        self._count("L1_MISS", line, sectors - present)
        return sectors - present

    def side_set_of(self, line: int) -> Set:
        return self.side[self.home(line), int(place.py_func(line, self.side_lines, 0)[1])]  # type: ignore[attr-defined]

    def _memory_read(self, line: int, sectors: Sectors) -> None:
        if self.side_lines and sectors:
            present, victim = self.side_set_of(line).touch(line, sectors)
            self._leave_side(victim)
            self._count("MSC_HIT", line, present)
            self._count("MSC_MISS", line, sectors - present)
            sectors = sectors - present
        self._count("DRAM_READ", line, sectors)

    def _memory_write(self, line: int, sectors: Sectors) -> None:
        if not self.side_lines:
            self._count("DRAM_WRITE", line, sectors)
        elif sectors:
            one = self.side_set_of(line)
            self._leave_side(one.touch(line, sectors)[1])
            one.lines[line].dirty |= sectors

    def _leave_side(self, victim: tuple[int, Line] | None) -> None:
        if victim:
            self._count("DRAM_WRITE", victim[0], victim[1].dirty)

    def _read_line(self, near: int, line: int, sectors: Sectors, hint: str) -> None:
        self._count("L2_READ", line, sectors)
        present: Sectors = set()
        if self.cached:
            present, victim = self.set_of(near, line).touch(line, sectors, hint)
            self._dispose(victim, self.set_of(near, line))
        self._count("L2_HIT", line, present)
        missing = sectors - present
        self._count("L2_MISS", line, missing)
        home = self.home(line)
        if missing and home != near:
            self._count("FABRIC_READ", line, missing)
            self._ask_home(self.set_of(home, line), line, missing, hint)
        else:
            self._memory_read(line, missing)

    def _ask_home(self, home: PolicySet, line: int, wanted: Sectors, hint: str) -> None:
        """Get sectors from the home, or the memory behind it; it may keep them, but a far hit promotes nothing."""
        held = home.lines[line].valid if line in home.lines else set()
        self._count("FAR_HIT", line, wanted & held)
        absent = wanted - held
        self._memory_read(line, absent)
        if absent and self.cached and self.home_allocation != "none" and hint != "no_allocate":
            if line in home.lines:
                self._dispose(home.touch(line, absent, hint)[1], home)
            else:
                depth = {"allocate": 0, "middle": self.ways * 5 // 8, "evict_first": self.ways - 1}
                self._dispose(home.insert_at(depth[self.home_allocation], line, absent, hint), home)

    def _write_line(self, near: int, line: int, sectors: Sectors) -> None:
        home = self.home(line)
        self._count("L2_WRITE", line, sectors)
        self._count("L2_HIT", line, sectors)
        if home != near:
            self._count("FABRIC_WRITE", line, sectors)
        if not self.cached:
            self._memory_write(line, sectors)
            return
        for partition in range(self.partitions):
            one = self.set_of(partition, line)
            if partition in (near, home):
                continue
            if line in one.lines:
                one.lines[line].valid -= sectors
        if self.around:
            self._memory_write(line, sectors)
            for partition in {near, home}:
                held = self.set_of(partition, line).lines.get(line)
                if held:
                    held.valid |= sectors
            return
        if home != near:
            near_set = self.set_of(near, line)
            self._dispose(near_set.touch(line, sectors)[1], near_set)
        if self.through:
            self._memory_write(line, sectors)
        at_home = self.set_of(home, line)
        self._dispose(at_home.touch(line, sectors)[1], at_home)
        if self.through:
            return
        self._make_dirty(home, line, sectors)

    def _reduce_line(self, near: int, line: int, sectors: Sectors) -> None:
        home = self.home(line)
        self._count("L2_WRITE", line, sectors)
        self._count("L2_REDUCE", line, sectors)
        if home != near:
            self._count("FABRIC_WRITE", line, sectors)
        held: Sectors = set()
        if self.cached:
            for partition in set(range(self.partitions)) - {home}:
                copy = self.set_of(partition, line).lines.get(line)
                if copy:
                    copy.valid -= sectors
            at_home = self.set_of(home, line)
            if self.around:
                there = at_home.lines.get(line)
                if there:
                    held = there.valid & sectors
                    there.valid |= sectors
            else:
                held, victim = at_home.touch(line, sectors)
                self._dispose(victim, at_home)
        self._count("L2_HIT", line, held)
        self._count("L2_MISS", line, sectors - held)
        self._memory_read(line, sectors - held)
        if not self.cached or self.through:
            self._memory_write(line, sectors)
        else:
            self._make_dirty(home, line, sectors)

    def _make_dirty(self, home: int, line: int, sectors: Sectors) -> None:
        at_home = self.set_of(home, line)
        self.dirty_sectors[home] += len(sectors - at_home.lines[line].dirty)
        at_home.lines[line].dirty |= sectors
        if self.dirty_sectors[home] > self.cap_sectors:
            oldest = at_home.oldest_dirty()
            assert oldest is not None
            self._write_back(oldest, at_home.lines[oldest])

    def _dispose(self, victim: tuple[int, Entry] | None, left: PolicySet) -> None:
        """Write back the line that left a set, and then those of the set that are the next to go."""
        if victim:
            self._write_back(*victim)
            for key in reversed(list(left.lines)[: self.clean_ways]):
                self._write_back(key, left.lines[key])

    def _write_back(self, line: int, held: Entry) -> None:
        self._memory_write(line, held.dirty)
        self.dirty_sectors[self.home(line)] -= len(held.dirty)
        held.dirty = set()


def held_lines(memory: MemorySystem) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """(partition, set) → (tag, valid mask, dirty mask) from the least recently used on, of a compiled memory system."""
    v = memory.values
    words = v["tags"].reshape(-1, v["sets"], v["ways"]).astype(int)
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for p in range(words.shape[0]):
        for s in range(v["sets"]):
            held = [(w >> 8, w & 15, w >> 4 & 15) for w in words[p, s, ::-1].tolist() if w != 0xFFFFFF00]
            if held:
                found[p, s] = held
    return found


def expected_lines(cache: Cache) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """The same of the model."""

    def mask(sectors: Sectors) -> int:
        return sum(1 << s for s in sectors)

    def words(one: PolicySet) -> list[tuple[int, int, int]]:
        return [(line // cache.lines_per_way, mask(x.valid), mask(x.dirty)) for line, x in one.lines.items()]

    return {key: words(one) for key, one in cache.sets.items() if one.lines}
