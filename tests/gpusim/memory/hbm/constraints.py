"""HBM's timing rules as a list of constraints between commands, in plain Python, to check histories against.

Shares nothing with `gpusim.memory.hbm.timing` but the numbers in `Rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpusim.memory.hbm.rules import Rules

PARENT = {"bank": 0, "group": 1, "pc": 2}

CONSTRAINTS = (
    # first, second, where both are, rule, how many of `first` back
    ("ACT", "RD", "bank", "rcd_read", 1),
    ("ACT", "WR", "bank", "rcd_write", 1),
    ("ACT", "PRE", "bank", "ras", 1),
    ("ACT", "ACT", "bank", "rc", 1),
    ("ACT", "ACT", "group", "rrd_l", 1),
    ("ACT", "ACT", "pc", "rrd_s", 1),
    ("ACT", "ACT", "pc", "faw", 4),
    ("PRE", "ACT", "bank", "rp", 1),
    ("PRE", "PRE", "pc", "ppd", 1),
    ("RD", "RD", "group", "ccd_l", 1),
    ("RD", "RD", "pc", "ccd_s", 1),
    ("WR", "WR", "group", "ccd_l", 1),
    ("WR", "WR", "pc", "ccd_s", 1),
    ("RD", "PRE", "bank", "rtp", 1),
    ("WR", "PRE", "bank", "wtp", 1),
    ("RD", "WR", "pc", "rtw", 1),
    ("WR", "RD", "group", "wtr_l", 1),
    ("WR", "RD", "pc", "wtr_s", 1),
    ("PRE", "REF", "bank", "pre_to_ref", 1),
    ("ACT", "REF", "bank", "act_to_ref", 1),
    ("REFpb", "ACT", "bank", "rfc_pb", 1),
    ("REFpb", "REF", "bank", "rfc_pb", 1),
    ("REFab", "ACT", "bank", "rfc_ab", 1),
    ("REFab", "REF", "bank", "rfc_ab", 1),
    ("REFpb", "ACT", "pc", "rref", 1),
    ("REFpb", "REF", "pc", "rref", 1),
    ("ACT", "REF", "pc", "rrd_s", 1),
)


@dataclass
class History:
    """What was sent, and what may be sent next. `…ab` commands name the first bank of their pseudo-channel."""

    rules: Rules
    banks: int = 16
    banks_per_group: int = 4
    times: dict[tuple[str, str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, int] = field(default_factory=dict)
    """Open row of each open bank."""

    def places(self, bank: int) -> dict[str, int]:
        return {"bank": bank, "group": bank // self.banks_per_group, "pc": bank // self.banks}

    def targets(self, command: str, bank: int) -> list[int]:
        """Banks that a command is for; PREab only means those that are open."""
        if not command.endswith("ab"):
            return [bank]
        every = range(bank, bank + self.banks)
        return [one for one in every if command != "PREab" or one in self.rows]

    def earliest(self, command: str, bank: int) -> int:
        """First tick at which no constraint forbids the command."""
        kind = {"PREab": "PRE", "REFab": "REF", "REFpb": "REF"}.get(command, command)
        first_legal = -(10**9)
        for one in self.targets(command, bank):
            for first, second, where, rule, back in CONSTRAINTS:
                sent = self.times[first, where, self.places(one)[where]]
                if second == kind and len(sent) >= back:
                    first_legal = max(first_legal, sent[-back] + int(getattr(self.rules, rule)))
        return first_legal

    def makes_sense(self, command: str, bank: int, row: int) -> bool:
        """Whether the banks are in a state for the command."""
        if command == "ACT":
            return bank not in self.rows
        if command in ("RD", "WR"):
            return self.rows.get(bank) == row
        opened = [one for one in self.targets(command, bank) if one in self.rows]
        return not opened if command.startswith("REF") else bool(opened)

    def send(self, command: str, bank: int, row: int, t: int) -> None:
        """Record a command."""
        kind = "PRE" if command == "PREab" else command
        for place in {(w, n) for one in self.targets(command, bank) for w, n in self.places(one).items()}:
            self.times[kind, *place].append(t)
        for one in self.targets(command, bank):
            if kind == "ACT":
                self.rows[one] = row
            elif kind == "PRE":
                self.rows.pop(one)


def violations(commands: Iterable[tuple[int, str, int, int]], rules: Rules, banks: int = 16) -> list[str]:
    """What is wrong with a history of (tick, command, bank, row): rules, bank states, command buses, clock edges."""
    history = History(rules, banks)
    found = []
    free = {"row": 0, "column": 0}
    for t, command, bank, row in commands:
        if t < history.earliest(command, bank):
            found.append(f"{command} of bank {bank} at {t}, not before {history.earliest(command, bank)}")
        if not history.makes_sense(command, bank, row):
            found.append(f"{command} of bank {bank}, row {row} at {t} makes no sense")
        bus = "column" if command in ("RD", "WR") else "row"
        if t < free[bus]:
            found.append(f"{command} at {t} while the {bus} bus is busy until {free[bus]}")
        if t % 2 and not command.startswith("PRE"):
            found.append(f"{command} at {t} on a falling edge")
        free[bus] = t + {"ACT": 3, "RD": 2, "WR": 2}.get(command, 1)
        history.send(command, bank, row, t)
    return found
