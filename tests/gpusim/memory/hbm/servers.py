"""`gpusim.memory.hbm.reserve` in plain Python objects: one server per bank, group, activate budget and bus."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

LONG_AGO = -1e15


@dataclass
class Bank:
    """Open row, the one before, and the times of the last commands."""

    row: int | None = None
    before: int | None = None
    act: float = LONG_AGO
    pre: float = LONG_AGO
    read: float = LONG_AGO
    write: float = LONG_AGO
    refreshed: float = LONG_AGO


@dataclass
class PseudoChannel:
    """Servers of one pseudo-channel; `number` and the machine's figures `v` say how fast they are."""

    number: int
    v: dict[str, Any]
    refresh: str
    banks: list[Bank] = field(default_factory=lambda: [Bank() for _ in range(16)])
    groups: list[float] = field(default_factory=lambda: [LONG_AGO] * 4)
    activates: float = 0.0
    bus: float = 0.0
    queued: int = 0
    has_read: bool = False

    def last_refresh(self, bank: int, t: float) -> float:
        turn = (16 * self.number + bank if self.refresh == "per_bank" else self.number) * 0.6180339887
        interval = self.v["rules"].refi
        phase = (turn - math.floor(turn)) * interval
        return phase + math.floor((t - phase) / interval) * interval

    def activated(self, number: int, row: int, t: float) -> float:
        """When the ACT was that opened the row; joining a row that is closing counts as long open."""
        bank, r = self.banks[number], self.v["rules"]
        if self.refresh != "none":
            length = r.rfc_pb if self.refresh == "per_bank" else r.rfc_ab
            end = self.last_refresh(number, t) + length
            if end > bank.refreshed:
                bank.refreshed, bank.row, bank.before = end, None, None
        if bank.row == row:
            return bank.act
        if bank.before == row and t < bank.act + 4 * r.rc:
            return t - r.rc
        bank.pre = max(t, bank.act + r.ras, bank.read + r.rtp, bank.write + r.wtp)
        turn = max(self.activates, t)
        self.activates = turn + max(r.faw / 4, r.rrd_s)
        bank.act = max(bank.act + r.rc, bank.pre + r.rp, bank.refreshed, turn)
        bank.before, bank.row = bank.row, row
        return bank.act

    def through_group(self, number: int, bursts: int, t: float) -> float:
        group, step = number // 4, self.v["rules"].ccd_l
        self.groups[group] = max(t, self.groups[group] + step) + (bursts - 1) * step
        return self.groups[group]

    def through_bus(self, work: float, t: float) -> float:
        start = max(self.bus, t)
        if self.refresh == "all_bank":
            start = max(start, self.last_refresh(0, start) + self.v["rules"].rfc_ab)
        self.bus = start + work
        return self.bus

    def read(self, number: int, row: int, bursts: int, t: float) -> float:
        bank, r = self.banks[number], self.v["rules"]
        first = max(t, self.activated(number, row, t) + r.rcd_read, bank.read + r.ccd_l)
        bank.read = first + (bursts - 1) * r.ccd_l
        begun = max(bank.read - r.rp - r.rcd_read, self.through_group(number, bursts, t))
        self.has_read = True
        return max(begun + self.v["burst_cycles"], self.through_bus(bursts * self.v["read_bus_cycles"], t))

    def write(self, number: int, row: int, bursts: int, t: float) -> float:
        bank, r = self.banks[number], self.v["rules"]
        first = max(t, self.activated(number, row, t) + r.rcd_write, bank.write + r.ccd_l)
        bank.write = first + (bursts - 1) * r.ccd_l
        begun = max(bank.write - r.rp - r.rcd_write, self.through_group(number, bursts, t))
        self.queued += bursts
        if self.queued >= self.v["write_high"]:
            turns = self.v["turnaround_cycles"] if self.has_read else 0.0
            self.through_bus((self.queued - self.v["write_low"]) * self.v["write_bus_cycles"] + turns, t)
            self.queued, self.has_read = self.v["write_low"], False
        return max(self.bus, begun - 4 * r.rc)
