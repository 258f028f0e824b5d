"""Do the stamps of a run say how long CTAs took from one moment to the next?"""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from kernels_cupy.cta_record import MOMENTS, Recorded
from kernels_cupy.stamps import intervals, stamps_table, stamps_text
from traces.cta_times import CtaTimes

PLACED, ARRIVED, MULTIPLIED = (MOMENTS.index(name) for name in ("placed", "arrived", "multiplied"))


def two_ctas() -> Recorded:
    """Two CTAs of two steps, of which the second CTA was never placed."""
    stamps = np.full((2, 3, len(MOMENTS)), np.nan)
    stamps[:, 0, ARRIVED], stamps[:, 1, ARRIVED] = (300, 310), (500, 520)
    stamps[:, 0, MULTIPLIED], stamps[:, 1, MULTIPLIED] = (400, 430), (610, 660)
    stamps[0, 0, PLACED] = 100
    starts, ends = np.array([0.0, 0.0]), np.array([700.0, 800.0])
    times = CtaTimes("toy", np.array([3, 7]), starts, ends / 2, starts, ends)
    return Recorded((times,), (32,), 1.0, (stamps,))


def test_are_intervals_those_between_stamps_that_follow_each_other() -> None:
    recorded = two_ctas()
    found = {(before, after): list(cycles) for before, after, cycles in intervals_of(recorded)}
    assert found == {
        ("start", "placed 0"): [100],
        ("placed 0", "arrived 0"): [200],
        ("start", "arrived 0"): [310],
        ("arrived 0", "multiplied 0"): [100, 120],
        ("multiplied 0", "arrived"): [100, 90],
        ("arrived", "multiplied"): [110, 140],
        ("multiplied", "end"): [90, 140],
    }


def intervals_of(recorded: Recorded) -> list[tuple[str, str, np.ndarray]]:
    return list(intervals(recorded.stamps[0], recorded.launches[0].duration_cycles))


def test_do_intervals_of_a_cta_add_up_to_its_time() -> None:
    recorded = two_ctas()
    assert sum(float(cycles.sum()) for _, _, cycles in intervals_of(recorded)) == pytest.approx(1500)


def test_are_intervals_in_the_order_in_which_ctas_come_to_them() -> None:
    names = [before for before, _, _ in intervals_of(two_ctas())]
    assert names[:2] == ["start", "start"] and names[-1] == "multiplied"


def test_does_the_table_say_how_often_and_how_long() -> None:
    lines = stamps_table(two_ctas()).splitlines()
    (line,) = [line for line in lines if "arrived 0 → multiplied 0" in line]
    assert line.split()[-4:] == ["1.0", "110", "101", "119"]


def test_has_the_file_a_row_for_every_step_of_a_cta_that_has_a_stamp() -> None:
    text = stamps_text(two_ctas(), {"gpu": "a card"})
    assert text.startswith("# gpu: a card\n")
    rows = list(csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#")))
    assert [(row["cta"], row["sm"], row["step"]) for row in rows] == [
        ("0", "3", "0"), ("0", "3", "1"), ("1", "7", "0"), ("1", "7", "1"),
    ]  # fmt: skip
    assert (rows[0]["placed"], rows[2]["placed"], rows[3]["multiplied"]) == ("100", "", "660")
