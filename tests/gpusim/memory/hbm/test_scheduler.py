"""Does the compiled controller break no rule, lose no request, and choose as its plain-Python form does?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.hbm_streams import ramulator_rules
from gpusim.memory.hbm.queues import Requests, new_requests
from gpusim.memory.hbm.scheduler import ALL_BANK, COMMANDS, NONE, PER_BANK, Controller, run_stream
from gpusim.memory.hbm.timing import new_banks
from tests.gpusim.memory.hbm.constraints import violations
from tests.gpusim.memory.hbm.controller import Request, serve

RULES = ramulator_rules()
KINDS = (NONE, ALL_BANK, PER_BANK)


def random_requests(seed: int, count: int, pcs: int, rows: int, writes: float, gap: float) -> Requests:
    """Runs of requests to one row, so that some hit; some banks are more popular than others."""
    random = np.random.default_rng(seed)
    run = np.cumsum(random.random(count) < 0.4)
    bank = (random.integers(0, 16 * pcs, count) * random.integers(0, 2, count) + random.integers(0, 5, count))[run]
    row = random.integers(0, rows, count)[run]
    arrival = np.cumsum(random.exponential(gap, count)).astype(np.int64) if gap else np.zeros(count, np.int64)
    return new_requests(bank % (16 * pcs), row, random.random(count) < writes, arrival)


def run(x: Requests, pcs: int, setup: Controller) -> tuple[int, list[tuple[int, str, int, int]]]:
    ticks, log = run_stream(new_banks(pcs, 4, 4), RULES, x, setup, log_size=10 * len(x.bank) + 5000)
    return ticks, [(t, COMMANDS[command], bank, row) for t, command, bank, row in log.tolist()]


@pytest.mark.parametrize("refresh", KINDS)
@pytest.mark.parametrize("pcs", (1, 2))
@pytest.mark.parametrize(("writes", "gap"), ((0.0, 0.0), (0.5, 0.0), (0.3, 20.0), (1.0, 0.0)))
def test_does_it_do_what_the_plain_python_controller_does(refresh: int, pcs: int, writes: float, gap: float) -> None:
    x = random_requests(pcs, 400, pcs, 4, writes, gap)
    columns: Any = zip(x.bank.tolist(), x.row.tolist(), x.write.tolist(), x.arrival.tolist(), strict=True)
    plain = [Request(n, bank, row, bool(write), arrival) for n, (bank, row, write, arrival) in enumerate(columns)]
    slots = 8 if gap else 32
    assert run(x, pcs, Controller(slots=slots, refresh=refresh)) == serve(plain, RULES, pcs, slots, refresh)


@pytest.mark.parametrize("refresh", KINDS)
@pytest.mark.parametrize("pcs", (1, 2))
@pytest.mark.parametrize("writes", (0.0, 0.4, 1.0))
def test_does_a_long_history_break_no_rule_and_serve_each_request_once(refresh: int, pcs: int, writes: float) -> None:
    x = random_requests(9, 3000, pcs, 40, writes, 0.0)
    _, commands = run(x, pcs, Controller(refresh=refresh))
    assert violations(commands, RULES) == []
    sent = sorted((t, command == "WR", bank, row) for t, command, bank, row in commands if command in ("RD", "WR"))
    columns: Any = zip(x.served.tolist(), x.write.astype(bool).tolist(), x.bank.tolist(), x.row.tolist(), strict=True)
    assert sent == sorted(served for served in columns if served[0] >= 0)
    assert len(sent) > 3000 - 32 * 2 - 16 * pcs


@pytest.mark.parametrize(("refresh", "command"), ((ALL_BANK, "REFab"), (PER_BANK, "REFpb")))
def test_is_no_refresh_forgotten(refresh: int, command: str) -> None:
    ticks, commands = run(random_requests(3, 3000, 2, 40, 0.3, 0.0), 2, Controller(refresh=refresh))
    due = ticks * (16 if refresh == PER_BANK else 1) / RULES.refi
    for pc in (0, 1):
        sent = sum(one[1] == command and one[2] // 16 == pc for one in commands)
        assert due - 2 <= sent <= due


def test_is_every_run_the_same() -> None:
    first, second = (run(random_requests(5, 2000, 2, 9, 0.5, 0.0), 2, Controller()) for _ in range(2))
    assert first == second


def test_are_the_constraints_able_to_fail() -> None:
    _, commands = run(random_requests(5, 200, 1, 9, 0.5, 0.0), 1, Controller())
    t, command, bank, row = commands[-1]
    assert violations([*commands[:-1], (t - 60, command, bank, row)], RULES)
