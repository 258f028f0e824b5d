"""The FR-FCFS controller in plain Python, every tick of it, from its documentation and the list of constraints."""

from __future__ import annotations

from dataclasses import dataclass

from gpusim.memory.hbm.rules import Rules
from gpusim.memory.hbm.scheduler import ALL_BANK, NONE, PER_BANK
from tests.gpusim.memory.hbm.constraints import History

Command = tuple[int, str, int, int]


@dataclass(frozen=True)
class Request:
    """One access; ordered by arrival."""

    number: int
    bank: int
    row: int
    write: bool
    arrival: int


def serve(requests: list[Request], rules: Rules, pcs: int, slots: int, refresh: int) -> tuple[int, list[Command]]:
    """(ticks until the last request is accepted, every command sent)."""
    history, commands = History(rules), list[Command]()
    reads, writes, active = list[Request](), list[Request](), list[Request]()
    spacing = int(rules.refi / 16 if refresh == PER_BANK else rules.refi)
    due, turn = [spacing] * pcs, [0] * pcs
    pending: list[str | int | None] = [None] * pcs
    free = {"row": 0, "column": 0}
    waiting = list(requests)
    draining = False
    t = -1

    def send(command: str, bank: int, row: int) -> None:
        history.send(command, bank, row, t)
        commands.append((t, command, bank, row))
        free["column" if command in ("RD", "WR") else "row"] = t + {"ACT": 3, "RD": 2, "WR": 2}.get(command, 1)

    def held_back(r: Request) -> bool:
        return "all" in pending or r.bank in pending

    def column_command() -> None:
        for source in (active, writes if draining else reads):
            for r in sorted(source, key=lambda r: r.number):
                command = "WR" if r.write else "RD"
                if history.rows.get(r.bank) != r.row or (source is not active and held_back(r)):
                    continue
                if history.earliest(command, r.bank) <= t:
                    source.remove(r)
                    send(command, r.bank, r.row)
                    return

    def refresh_command() -> bool:
        for pc, what in enumerate(pending):
            if what is None:
                continue
            banks = range(16 * pc, 16 * pc + 16) if what == "all" else [int(what)]
            if any(r.bank in banks for r in active):
                continue
            suffix = "ab" if what == "all" else ""
            opened = any(bank in history.rows for bank in banks)
            command = "PRE" + suffix if opened else "REF" + (suffix or "pb")
            if history.earliest(command, banks[0]) > t or (t % 2 and command.startswith("REF")):
                continue
            send(command, banks[0], -1)
            if command.startswith("REF"):
                pending[pc] = None
            return True
        return False

    def row_command() -> None:
        source = writes if draining else reads
        for r in source:
            opened = history.rows.get(r.bank)
            if opened == r.row or held_back(r) or (opened is not None and any(a.bank == r.bank for a in active)):
                continue
            command = "ACT" if opened is None else "PRE"
            if history.earliest(command, r.bank) <= t and not (t % 2 and command == "ACT"):
                send(command, r.bank, r.row)
                if command == "ACT":
                    source.remove(r)
                    active.append(r)
                return

    while True:
        t += 1
        for pc in range(pcs):
            if refresh != NONE and t >= due[pc] and pending[pc] is None:
                pending[pc] = "all" if refresh == ALL_BANK else 16 * pc + turn[pc]
                turn[pc] = (turn[pc] + 1) % 16
                due[pc] += spacing
        queue = writes if waiting[0].write else reads
        if waiting[0].arrival <= t and len(queue) < slots:
            queue.append(waiting.pop(0))
            if not waiting:
                return t + 1, commands
        full = len(writes) >= 0.2 * slots if draining else len(writes) > 0.8 * slots
        draining = full or not reads
        if t >= free["column"] and t % 2 == 0:
            column_command()
        if t >= free["row"] and not refresh_command():
            row_command()
