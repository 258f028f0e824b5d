"""A plain-Python cache set under any replacement policy and hint, written from docs/l2.md.

Every line carries what the policy knows about it (prediction, persisting or not); the compiled sets store neither, only
an order and sizes of groups.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

Sectors = set[int]
DISTANT, LONG, SOON = 3, 2, 0


class Dice:
    """The documented sequence of random numbers."""

    def __init__(self) -> None:
        self.state = 0

    def draw(self, count: int) -> int:
        self.state = (1103515245 * self.state + 12345) % 2**31
        return self.state // 2**15 % count


@dataclass
class Entry:
    """A line: key, sectors, SRRIP's prediction, whether it is persisting."""

    key: int
    valid: Sectors = field(default_factory=set)
    dirty: Sectors = field(default_factory=set)
    prediction: int = SOON
    kept: bool = False


class PolicySet:
    """Lines, the most protected first: persisting ones, then the others in their order."""

    def __init__(self, ways: int, policy: str = "lru", most_kept: int = 0, dice: Dice | None = None) -> None:
        self.ways, self.policy, self.most_kept = ways, policy, most_kept
        self.dice = dice or Dice()
        self.row: list[Entry] = []

    @property
    def lines(self) -> OrderedDict[int, Entry]:
        """By key, the least protected first."""
        return OrderedDict((e.key, e) for e in reversed(self.row))

    def oldest_dirty(self) -> int | None:
        return next((e.key for e in reversed(self.row) if e.dirty), None)

    def touch(self, key: int, sectors: Sectors, hint: str = "normal") -> tuple[Sectors, tuple[int, Entry] | None]:
        found = self.lines.get(key)
        if found is None:
            return set(), None if hint == "no_allocate" else self._fill(key, sectors, hint, None)
        present = found.valid & sectors
        if hint != "no_allocate":
            found.valid |= sectors
        if hint in ("normal", "evict_last"):
            self._hit(found, hint)
        return present, None

    def insert_at(self, depth: int, key: int, sectors: Sectors, hint: str = "normal") -> tuple[int, Entry] | None:
        return self._fill(key, sectors, hint, depth)

    def _kept(self) -> int:
        return sum(e.kept for e in self.row)

    def _hit(self, entry: Entry, hint: str) -> None:
        promotes = self.policy not in ("fifo", "random")
        if entry.kept:
            self.row.remove(entry)
            self.row.insert(0, entry)
        elif hint == "evict_last" and self.most_kept:
            self.row.remove(entry)
            self._keep(entry)
        elif promotes or hint == "evict_last":
            self.row.remove(entry)
            entry.prediction = SOON
            self.row.insert(self._kept(), entry)

    def _keep(self, entry: Entry) -> None:
        entry.kept = True
        self.row.insert(0, entry)
        kept = [e for e in self.row if e.kept]
        if len(kept) > self.most_kept:
            kept[-1].kept, kept[-1].prediction = False, SOON

    def _fill(self, key: int, sectors: Sectors, hint: str, depth: int | None) -> tuple[int, Entry] | None:
        victim = self._evict() if len(self.row) == self.ways else None
        entry = Entry(key, set(sectors))
        if hint == "evict_last" and self.most_kept:
            self._keep(entry)
        else:
            place = min(self._entry_place(entry, hint, depth), len(self.row))
            self.row.insert(place, entry)
        return (victim.key, victim) if victim else None

    def _evict(self) -> Entry:
        others = [e for e in self.row if not e.kept]
        if self.policy == "random":
            chosen = others[self.dice.draw(len(others))]
        else:
            while self.policy == "srrip" and not any(e.prediction == DISTANT for e in others):
                for e in others:
                    e.prediction += 1
            chosen = others[-1]
        # under `random` predictions mean nothing
        self.row.remove(chosen)
        return chosen

    def _entry_place(self, entry: Entry, hint: str, depth: int | None) -> int:
        kept = self._kept()
        if hint == "evict_first":
            entry.prediction = DISTANT
            return self.ways
        if hint == "evict_last":
            return kept
        if depth is not None:
            place = max(depth, kept)
            entry.prediction = self.row[place].prediction if place < len(self.row) else DISTANT
            return place
        match self.policy:
            case "lip":
                return self.ways
            case "bip":
                return kept if self.dice.draw(32) == 0 else self.ways
            case "srrip":
                entry.prediction = LONG
                return kept + sum(e.prediction < LONG for e in self.row if not e.kept)
            case _:
                return kept
