"""Does the HBM controller reach what Ramulator reaches, on the oracle's own request streams?"""

from __future__ import annotations

import pytest

from experiments.hbm_streams import Oracle, main, oracle, ramulator_rules, replay

COUNT = 20_000
"""Requests of each stream; the whole streams differ by less (docs/hbm.md)."""
ROWS = [row for row in oracle() if "frfcfsrowhit" not in row.pattern]
RULES = ramulator_rules()


@pytest.mark.parametrize("row", ROWS, ids=[row.pattern for row in ROWS])
def test_are_bandwidth_and_row_hits_those_of_ramulator(row: Oracle) -> None:
    ours = replay(row.pattern, COUNT)
    tight = row.pattern.endswith("bgi1pc")
    assert ours.bandwidth_percent == pytest.approx(row.bandwidth_percent, rel=0.03 if tight else 0.05)
    assert ours.row_hit_rate == pytest.approx(row.row_hit_rate, abs=0.01 if tight else 0.02)


@pytest.mark.parametrize("pattern", ("seq_read@bgi1pc", "random_read@bgi1pc", "rw_copy_4k@bgi1pc"))
def test_is_the_read_latency_that_of_ramulator(pattern: str) -> None:
    measured = {"seq_read": 92.4, "random_read": 263.6, "rw_copy_4k": 180.1}[pattern.split("@")[0]]
    assert replay(pattern, COUNT).read_latency == pytest.approx(measured, rel=0.1)


def test_does_a_sequential_read_reach_nine_tenths_of_what_refresh_leaves() -> None:
    awake = 1 - RULES.rfc_ab / RULES.refi
    assert 90 * awake <= replay("seq_read@bgi1pc", COUNT).bandwidth_percent <= 100 * awake


def test_are_random_reads_bound_by_the_window_of_four_activates() -> None:
    """Every access opens a row: at most 4 bursts per tFAW, and tRC / 16 banks is no tighter."""
    per_window = 4 * RULES.ccd_s / RULES.faw
    per_row_cycle = 16 * RULES.ccd_s / RULES.rc
    bound = 100 * min(per_window, per_row_cycle) * (1 - RULES.rfc_ab / RULES.refi)
    assert per_window < per_row_cycle
    assert 0.9 * bound <= replay("random_read@bgi1pc", COUNT).bandwidth_percent <= bound


def test_is_one_bank_bound_by_its_row_cycle() -> None:
    bound = 100 * RULES.ccd_s / RULES.rc * (1 - RULES.rfc_ab / RULES.refi)
    assert 0.95 * bound <= replay("stride_samebank_row@bgi1pc", COUNT).bandwidth_percent <= 1.01 * bound


def test_does_the_command_print_both_and_the_worst_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--match", "seq_write@", "--requests", "3000"]) == 0
    printed = capsys.readouterr().out
    assert "seq_write@bgi1pc" in printed and "91.98" in printed and "default2pc   worst" in printed
