"""An FR-FCFS controller of one channel, command by command.

Requests enter in order, one attempt a tick; the first that finds its queue full keeps the others waiting. Every tick
the controller may send one command on the row bus (ACT, PRE, REF) and one on the column bus (RD, WR); the
pseudo-channels of the channel share both. A tick is half a clock: commands start on a rising edge, PRE on any.
Reads go first until the write queue passes its high watermark, then writes until it falls below the low one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpusim.jit import njit
from gpusim.memory.hbm.queues import (
    ACTIVE,
    FOREVER,
    READS,
    WRITES,
    Requests,
    dequeue,
    enqueue,
    new_queues,
    pick_column,
    pick_row,
)
from gpusim.memory.hbm.rules import COMMAND_TICKS, Rules
from gpusim.memory.hbm.timing import (
    CLOSED,
    Banks,
    earliest_pre,
    earliest_pre_all,
    earliest_refresh_all,
    earliest_refresh_bank,
    issue_act,
    issue_pre,
    issue_pre_all,
    issue_read,
    issue_refresh_all,
    issue_refresh_bank,
    issue_write,
)

__all__ = [
    "ACT",
    "COMMANDS",
    "PRE",
    "PREAB",
    "READ",
    "REFAB",
    "REFPB",
    "WRITE",
    "Controller",
    "row_hit_rate",
    "run_stream",
]

COMMANDS = ("ACT", "PRE", "RD", "WR", "PREab", "REFab", "REFpb")
ACT, PRE, READ, WRITE, PREAB, REFAB, REFPB = range(7)
NONE, ALL_BANK, PER_BANK = range(3)
"""Kinds of refresh."""
_ACT_TICKS, _COLUMN_TICKS = COMMAND_TICKS["act"], COMMAND_TICKS["read"]
_ALL, _NO_BANK = -2, -1


class Controller(NamedTuple):
    """How a controller is set up; the defaults are Ramulator's.

    Attributes:
        slots: entries of the read queue, and of the write queue.
        high, low: shares of the write queue above which writes are drained and below which they stop being.
        refresh: `NONE`, `ALL_BANK` or `PER_BANK`.
    """

    slots: int = 32
    high: float = 0.8
    low: float = 0.2
    refresh: int = ALL_BANK


class _Refresh(NamedTuple):
    """Per pseudo-channel: what is pending (`_NO_BANK`, `_ALL` or a bank), when the next is due, whose turn it is."""

    pending: Any
    due: Any
    turn: Any


class _Log(NamedTuple):
    """Commands as sent: rows of tick, command, bank (first bank of the pseudo-channel for `…ab`), row."""

    rows: Any
    count: Any


def run_stream(
    banks: Banks, rules: Rules, requests: Requests, setup: Controller | None = None, log_size: int = 0
) -> tuple[int, Any]:
    """Serve `requests` until the last is accepted.

    Returns:
        (ticks taken, the first `log_size` commands: rows of tick, command, bank, row).
    """
    setup = setup or Controller()
    total = len(banks.open_row)
    pcs = total // banks.banks
    spacing = rules.refi / banks.banks if setup.refresh == PER_BANK else rules.refi
    due = np.full(pcs, FOREVER if setup.refresh == NONE else int(spacing), np.int64)
    refresh = _Refresh(np.full(pcs, _NO_BANK, np.int64), due, np.zeros(pcs, np.int64))
    log = _Log(np.zeros((log_size, 4), np.int64), np.zeros(1, np.int64))
    ticks = _run(banks, rules, requests, new_queues(setup.slots, total), setup, refresh, int(spacing), log)
    return int(ticks), log.rows[: log.count[0]]


@njit
def _send(log: Any, t: int, command: int, bank: int, row: int) -> None:
    n = log.count[0]
    if n < len(log.rows):
        log.rows[n, 0], log.rows[n, 1], log.rows[n, 2], log.rows[n, 3] = t, command, bank, row
        log.count[0] = n + 1


@njit
def _accept(q: Any, x: Any, slots: int, request: int, t: int) -> bool:
    """Take a request into its queue, if there is room."""
    which = WRITES if x.write[request] else READS
    if q.length[which] >= slots:
        return False
    enqueue(q, which, request)
    x.accepted[request] = t
    return True


@njit
def _serve_column(q: Any, x: Any, b: Any, r: Any, which: int, refreshing: Any, t: int, log: Any) -> tuple[bool, int]:
    """Send the RD or WR of an active request, or else of one that hits; (sent, next time worth trying)."""
    source = ACTIVE
    position, soonest = pick_column(q, x, b, r, ACTIVE, refreshing, t)
    if position < 0:
        source = which
        position, other = pick_column(q, x, b, r, which, refreshing, t)
        soonest = min(soonest, other)
    if position < 0:
        return False, soonest
    request = dequeue(q, source, position)
    bank = x.bank[request]
    if source == ACTIVE:
        q.busy[bank] -= 1
    command = WRITE if x.write[request] else READ
    if command == WRITE:
        issue_write(b, bank, t)
    else:
        issue_read(b, bank, t)
    if x.first[request] < 0:
        x.first[request] = command
    x.served[request] = t
    _send(log, t, command, bank, x.row[request])
    return True, soonest


@njit
def _serve_row(q: Any, x: Any, b: Any, r: Any, which: int, refreshing: Any, t: int, log: Any) -> tuple[int, int]:
    """Send the ACT or PRE of a waiting request; (ticks it takes on the row bus, next time worth trying)."""
    position, soonest = pick_row(q, x, b, r, which, refreshing, t % 2 == 0, t)
    if position < 0:
        return 0, soonest
    request = q.entries[which, position]
    bank = x.bank[request]
    command = PRE
    if b.open_row[bank] == CLOSED:
        command = ACT
        issue_act(b, bank, x.row[request], t)
        enqueue(q, ACTIVE, dequeue(q, which, position))
        q.busy[bank] += 1
    else:
        issue_pre(b, bank, t)
    if x.first[request] < 0:
        x.first[request] = command
    _send(log, t, command, bank, x.row[request])
    return (_ACT_TICKS if command == ACT else 1), soonest


@njit
def _serve_refresh(q: Any, b: Any, r: Any, refresh: Any, t: int, log: Any) -> tuple[bool, int]:
    """Send the next command towards a pending refresh; (sent, next time worth trying)."""
    soonest = FOREVER
    for pc in range(len(refresh.pending)):
        pending = refresh.pending[pc]
        if pending == _NO_BANK:
            continue
        first = pc * b.banks if pending == _ALL else pending
        last = (pc + 1) * b.banks if pending == _ALL else pending + 1
        opened, waiting = 0, 0
        for bank in range(first, last):
            opened += b.open_row[bank] != CLOSED
            waiting += q.busy[bank]
        if waiting:
            continue
        if opened:
            legal = earliest_pre_all(b, r, pc) if pending == _ALL else earliest_pre(b, r, pending)
        else:
            legal = earliest_refresh_all(b, r, pc) if pending == _ALL else earliest_refresh_bank(b, r, pending)
        if legal > t or (t % 2 and not opened):
            soonest = min(soonest, max(legal, t + 1))
            continue
        if opened and pending == _ALL:
            issue_pre_all(b, pc, t)
            _send(log, t, PREAB, first, CLOSED)
        elif opened:
            issue_pre(b, first, t)
            _send(log, t, PRE, first, CLOSED)
        elif pending == _ALL:
            issue_refresh_all(b, r, pc, t)
            _send(log, t, REFAB, first, CLOSED)
            refresh.pending[pc] = _NO_BANK
        else:
            issue_refresh_bank(b, r, first, t)
            _send(log, t, REFPB, first, CLOSED)
            refresh.pending[pc] = _NO_BANK
        return True, soonest
    return False, soonest


@njit
def _schedule_refresh(b: Any, refresh: Any, kind: int, spacing: int, t: int) -> int:
    """Make the refreshes that are due pending; returns when the next one is."""
    soonest = FOREVER
    for pc in range(len(refresh.due)):
        if t >= refresh.due[pc] and refresh.pending[pc] == _NO_BANK:
            refresh.pending[pc] = _ALL if kind == ALL_BANK else pc * b.banks + refresh.turn[pc]
            refresh.turn[pc] = (refresh.turn[pc] + 1) % b.banks
            refresh.due[pc] += spacing
        soonest = min(soonest, max(refresh.due[pc], t + 1))
    return soonest


@njit
def _run(b: Any, r: Any, x: Any, q: Any, setup: Any, refresh: Any, spacing: int, log: Any) -> int:
    """Tick by tick; ticks in which nothing can happen are skipped."""
    count = len(x.bank)
    offered, t, row_free, column_free = 0, 0, 0, 0
    draining = False
    while True:
        event = False
        soonest = _schedule_refresh(b, refresh, setup.refresh, spacing, t)
        if x.arrival[offered] > t:
            soonest = min(soonest, x.arrival[offered])
        elif _accept(q, x, setup.slots, offered, t):
            offered += 1
            event = True
            if offered == count:
                return t + 1
        if draining:
            draining = q.length[WRITES] >= setup.low * setup.slots or q.length[READS] == 0
        else:
            draining = q.length[WRITES] > setup.high * setup.slots or q.length[READS] == 0
        which = WRITES if draining else READS
        if t < column_free or t % 2:
            soonest = min(soonest, max(column_free, t + 1))
        else:
            sent, again = _serve_column(q, x, b, r, which, refresh.pending, t, log)
            soonest = min(soonest, again)
            if sent:
                event = True
                column_free = t + _COLUMN_TICKS
        if t < row_free:
            soonest = min(soonest, row_free)
        else:
            sent, again = _serve_refresh(q, b, r, refresh, t, log)
            soonest = min(soonest, again)
            taken = 1 if sent else 0
            if not sent:
                taken, again = _serve_row(q, x, b, r, which, refresh.pending, t, log)
                soonest = min(soonest, again)
            if taken:
                event = True
                row_free = t + taken
        t = t + 1 if event else max(t + 1, soonest)


def row_hit_rate(requests: Requests) -> float:
    """Share of the requests with a first command whose first command was RD or WR."""
    first = requests.first[requests.first >= 0]
    return float(np.isin(first, (READ, WRITE)).mean()) if len(first) else float("nan")
