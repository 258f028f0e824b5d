"""A controller's queues, and the choice FR-FCFS makes in them: first what is ready, then what is oldest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpusim.jit import njit
from gpusim.memory.hbm.timing import CLOSED, earliest_act, earliest_pre, earliest_read, earliest_write

READS, WRITES, ACTIVE = range(3)
"""Queues: `ACTIVE` holds requests whose ACT is issued and whose RD or WR is not."""
FOREVER = 1 << 60


class Requests(NamedTuple):
    """A stream of accesses to one channel, in order, and what became of them.

    Attributes:
        bank, row, write: where to, and 1 for a write.
        arrival: tick from which the front end may offer it.
        accepted: tick at which a queue took it. first: its first command. served: tick of its RD or WR. -1: not yet.
    """

    bank: Any
    row: Any
    write: Any
    arrival: Any
    accepted: Any
    first: Any
    served: Any


class Queues(NamedTuple):
    """Request numbers in order of arrival (in `ACTIVE`, of activation); `busy[bank]`: active requests of a bank."""

    entries: Any
    length: Any
    busy: Any


def new_requests(bank: Any, row: Any, write: Any, arrival: Any) -> Requests:
    """Requests that nothing has happened to."""
    columns = [np.ascontiguousarray(x, np.int64) for x in (bank, row, write, arrival)]
    return Requests(*columns, *(np.full(len(columns[0]), -1, np.int64) for _ in range(3)))


def new_queues(slots: int, banks: int) -> Queues:
    """Empty queues of `slots` entries, for `banks` banks in all (one request of each can be active)."""
    return Queues(np.zeros((3, max(slots, banks)), np.int64), np.zeros(3, np.int64), np.zeros(banks, np.int64))


@njit
def enqueue(q: Any, which: int, request: int) -> None:
    """Append a request to a queue."""
    q.entries[which, q.length[which]] = request
    q.length[which] += 1


@njit
def dequeue(q: Any, which: int, position: int) -> int:
    """Take the request at `position` out of a queue."""
    request = q.entries[which, position]
    last = q.length[which] - 1
    for i in range(position, last):
        q.entries[which, i] = q.entries[which, i + 1]
    q.length[which] = last
    return request


@njit
def is_blocked(refreshing: Any, bank: int, banks: int) -> bool:
    """Whether a pending refresh keeps new work from a bank: `refreshing[pc]` is a bank, -1 for none, -2 for all.

    An all-bank refresh of one pseudo-channel keeps the whole channel waiting, as Ramulator's does.
    """
    for pc in range(len(refreshing)):
        if refreshing[pc] == -2:
            return True
    return refreshing[bank // banks] == bank


@njit
def pick_column(q: Any, x: Any, b: Any, r: Any, which: int, refreshing: Any, t: int) -> tuple[int, int]:
    """(position of the oldest request whose RD or WR is legal at `t`, or -1; first time at which another is)."""
    best, oldest, soonest = -1, FOREVER, FOREVER
    for position in range(q.length[which]):
        request = q.entries[which, position]
        bank = x.bank[request]
        if b.open_row[bank] != x.row[request]:
            continue
        if which != ACTIVE and is_blocked(refreshing, bank, b.banks):
            continue
        legal = earliest_write(b, r, bank) if x.write[request] else earliest_read(b, r, bank)
        if legal > t:
            soonest = min(soonest, legal)
        elif request < oldest:
            best, oldest = position, request
    return best, soonest


@njit
def pick_row(q: Any, x: Any, b: Any, r: Any, which: int, refreshing: Any, rising: bool, t: int) -> tuple[int, int]:
    """(position of the oldest request whose ACT or PRE is legal at `t`, or -1; first time at which another is).

    Only PRE may be sent on a falling edge, and no PRE while a request that activated the bank still waits for it.
    """
    soonest = FOREVER
    for position in range(q.length[which]):
        request = q.entries[which, position]
        bank = x.bank[request]
        row = b.open_row[bank]
        if row == x.row[request] or (row != CLOSED and q.busy[bank]) or is_blocked(refreshing, bank, b.banks):
            continue
        legal = earliest_act(b, r, bank) if row == CLOSED else earliest_pre(b, r, bank)
        if legal <= t and (rising or row != CLOSED):
            return position, soonest
        soonest = min(soonest, max(legal, t + 1))
    return -1, soonest
