"""Is each command legal exactly when its rule says, and not one tick before?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments.hbm_streams import ramulator_rules
from gpusim.memory.hbm import timing
from gpusim.memory.hbm.rules import Rules
from gpusim.memory.hbm.timing import Banks, new_banks
from tests.gpusim.memory.hbm.constraints import History

RULES = ramulator_rules()
START = 100_000

ISSUE: dict[str, Callable[[Banks, Rules, int, int], None]] = {
    "ACT": lambda b, r, bank, t: timing.issue_act(b, bank, 7, t),
    "PRE": lambda b, r, bank, t: timing.issue_pre(b, bank, t),
    "RD": lambda b, r, bank, t: timing.issue_read(b, bank, t),
    "WR": lambda b, r, bank, t: timing.issue_write(b, bank, t),
    "PREab": lambda b, r, bank, t: timing.issue_pre_all(b, bank // b.banks, t),
    "REFab": lambda b, r, bank, t: timing.issue_refresh_all(b, r, bank // b.banks, t),
    "REFpb": lambda b, r, bank, t: timing.issue_refresh_bank(b, r, bank, t),
}
EARLIEST: dict[str, Callable[[Banks, Rules, int], Any]] = {
    "ACT": timing.earliest_act,
    "PRE": timing.earliest_pre,
    "RD": timing.earliest_read,
    "WR": timing.earliest_write,
    "PREab": lambda b, r, bank: timing.earliest_pre_all(b, r, bank // b.banks),
    "REFab": lambda b, r, bank: timing.earliest_refresh_all(b, r, bank // b.banks),
    "REFpb": timing.earliest_refresh_bank,
}
OTHER_GROUP, SAME_GROUP, SAME_BANK, OTHER_PC = 4, 1, 0, 16

CASES = (
    # rule, commands before (the last at START), where the next is, the next
    ("rcd_read", ("ACT",), SAME_BANK, "RD"),
    ("rcd_write", ("ACT",), SAME_BANK, "WR"),
    ("ras", ("ACT",), SAME_BANK, "PRE"),
    ("rc", ("ACT",), SAME_BANK, "ACT"),
    ("rrd_l", ("ACT",), SAME_GROUP, "ACT"),
    ("rrd_s", ("ACT",), OTHER_GROUP, "ACT"),
    ("rp", ("PRE",), SAME_BANK, "ACT"),
    ("ppd", ("PRE",), OTHER_GROUP, "PRE"),
    ("ccd_l", ("RD",), SAME_BANK, "RD"),
    ("ccd_l", ("RD",), SAME_GROUP, "RD"),
    ("ccd_s", ("RD",), OTHER_GROUP, "RD"),
    ("ccd_l", ("WR",), SAME_BANK, "WR"),
    ("ccd_l", ("WR",), SAME_GROUP, "WR"),
    ("ccd_s", ("WR",), OTHER_GROUP, "WR"),
    ("rtp", ("RD",), SAME_BANK, "PRE"),
    ("wtp", ("WR",), SAME_BANK, "PRE"),
    ("rtw", ("RD",), SAME_BANK, "WR"),
    ("rtw", ("RD",), OTHER_GROUP, "WR"),
    ("wtr_l", ("WR",), SAME_BANK, "RD"),
    ("wtr_l", ("WR",), SAME_GROUP, "RD"),
    ("wtr_s", ("WR",), OTHER_GROUP, "RD"),
    ("pre_to_ref", ("PRE",), SAME_BANK, "REFpb"),
    ("pre_to_ref", ("PRE",), SAME_BANK, "REFab"),
    ("act_to_ref", ("ACT",), SAME_BANK, "REFpb"),
    ("act_to_ref", ("ACT",), SAME_BANK, "REFab"),
    ("rfc_pb", ("REFpb",), SAME_BANK, "ACT"),
    ("rfc_pb", ("REFpb",), SAME_BANK, "REFpb"),
    ("rref", ("REFpb",), OTHER_GROUP, "ACT"),
    ("rref", ("REFpb",), OTHER_GROUP, "REFpb"),
    ("rfc_ab", ("REFab",), SAME_BANK, "ACT"),
    ("rfc_ab", ("REFab",), OTHER_GROUP, "ACT"),
    ("rfc_ab", ("REFab",), SAME_BANK, "REFab"),
)


def only(name: str) -> Rules:
    """The real value of one rule, and nothing of the others."""
    return Rules(**{key: value if key == name else 0 for key, value in RULES._asdict().items()})


@pytest.mark.parametrize(("rule", "before", "where", "command"), CASES)
def test_is_the_next_command_legal_when_the_rule_says_and_not_before(
    rule: str, before: tuple[str, ...], where: int, command: str
) -> None:
    rules = only(rule)
    banks, history = new_banks(2, 4, 4), History(rules)
    for number, earlier in enumerate(reversed(before)):
        ISSUE[earlier](banks, rules, 0, START - number)
        history.rows[0] = 7
        history.send(earlier, 0, 7, START - number)
    first = START + int(getattr(RULES, rule))
    assert EARLIEST[command](banks, rules, where) == first == history.earliest(command, where)
    assert EARLIEST[command](banks, rules, where) > first - 1
    elsewhere = EARLIEST[command](banks, rules, OTHER_PC)
    assert elsewhere < START, "a pseudo-channel has timing of its own"


def test_must_the_fifth_activate_wait_for_the_window_of_four() -> None:
    rules = only("faw")
    banks = new_banks(1, 4, 4)
    for number, bank in enumerate((0, 4, 8, 12)):
        assert timing.earliest_act(banks, rules, bank) <= START + 8 * number
        timing.issue_act(banks, bank, 7, START + 8 * number)
    assert timing.earliest_act(banks, rules, 1) == START + RULES.faw
    timing.issue_act(banks, 1, 7, START + RULES.faw)
    assert timing.earliest_act(banks, rules, 5) == START + 8 + RULES.faw


def test_does_closing_all_banks_wait_for_the_slowest_open_one() -> None:
    banks = new_banks(2, 4, 4)
    timing.issue_act(banks, 0, 7, START)
    timing.issue_act(banks, 4, 7, START + 20)
    timing.issue_write(banks, 4, START + 80)
    timing.issue_act(banks, 20, 7, START + 5000)  # another pseudo-channel
    assert timing.earliest_pre_all(banks, RULES, 0) == START + 80 + RULES.wtp
    timing.issue_pre_all(banks, 0, START + 400)
    assert (banks.open_row[:16] == timing.CLOSED).all() and banks.open_row[20] == 7


def test_do_ramulators_command_lengths_shift_the_distances() -> None:
    assert RULES.rcd_read == 2 * 31 + 1 and RULES.rcd_write == 2 * 15 + 1 and RULES.rp == 2 * 26 - 2
    assert RULES.ras == 2 * 45 + 2 and RULES.rc == 2 * 72 and RULES.rtp == 2 * 9 + 1
    assert RULES.wtr_l == 2 * (10 + 2 + 10) and RULES.wtp == 2 * (10 + 2 + 33) + 1 and RULES.faw == 48


def test_does_every_state_agree_with_the_list_of_constraints() -> None:
    """Random legal commands: both sides must always give the same first legal tick for every command and bank."""
    random = np.random.default_rng(0)
    banks, history = new_banks(2, 4, 4), History(RULES)
    t = START
    for _ in range(400):
        bank = int(random.integers(32))
        row = int(random.integers(3))
        names = [n for n in ISSUE if not n.endswith("ab") or random.random() < 0.1]
        sensible = []
        for name in names:
            at = bank // 16 * 16 if name.endswith("ab") else bank
            if history.makes_sense(name, at, history.rows.get(bank, row)):
                legal = history.earliest(name, at)
                assert max(EARLIEST[name](banks, RULES, at), 0) == max(legal, 0), name
                sensible.append((name, at, legal))
        if not sensible:
            continue
        name, at, legal = sensible[int(random.integers(len(sensible)))]
        t = max(t, legal) + int(random.integers(0, 30))
        if name == "ACT":
            timing.issue_act(banks, at, row, t)
        else:
            ISSUE[name](banks, RULES, at, t)
        history.send(name, at, history.rows.get(at, row), t)
        assert {b: r for b, r in enumerate(banks.open_row.tolist()) if r != timing.CLOSED} == history.rows
