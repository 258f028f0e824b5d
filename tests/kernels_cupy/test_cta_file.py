"""Does a file of CTA times give back what was written, and is another file refused?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_cupy.commented_csv import read_facts
from kernels_cupy.cta_file import COLUMNS, cta_text, read_ctas
from tests.kernels_cupy.compiling import plan_of
from traces.cta_times import CtaTimes
from traces.launch import Plan

PLAN = plan_of("naive", heads=1, lengths=(100, 28), dim=64)


def launch(kernel: str, ctas: int, seed: int) -> CtaTimes:
    """Times that a GPU may give: whole numbers, some of them large."""
    random = np.random.default_rng(seed)

    def column(most: int) -> NDArray[np.float64]:
        return random.integers(0, most, ctas).astype(np.float64)

    start_ns, start_clock = column(10**7), column(10**11)
    return CtaTimes(
        kernel,
        random.integers(0, 132, ctas),
        start_ns,
        start_ns + column(10**6),
        start_clock,
        start_clock + column(10**6),
    )


LAUNCHES = (launch("qk", 7, 0), launch("softmax", 200, 1), launch("softmax", 1, 2))


def written(tmp_path: Path, plan: Plan = PLAN) -> Path:
    path = tmp_path / "ctas.csv"
    path.write_text(cta_text(plan, "warm", LAUNCHES, {"gpu": "a card", "date": "2026-11-30"}))
    return path


def test_is_what_was_written_read_back(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = read_ctas(path)
    assert (found.algorithm, found.problem, found.l2) == ("naive", PLAN.problem, "warm")
    assert PLAN.schedule.changed(found.schedule) == PLAN.schedule
    assert found.provenance == {"gpu": "a card", "date": "2026-11-30"}
    assert [t.kernel for t in found.launches] == ["qk", "softmax", "softmax"]
    for ours, theirs in zip(LAUNCHES, found.launches, strict=True):
        for name in ("sm", "start_ns", "end_ns", "start_clock", "end_clock"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


def test_is_there_a_row_for_every_cta_below_what_ran(tmp_path: Path) -> None:
    path = written(tmp_path)
    rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert rows[0] == ",".join(COLUMNS) and len(rows) == 1 + 7 + 200 + 1
    assert rows[8].startswith("softmax,1,0,") and rows[-1].startswith("softmax,2,0,")
    assert list(read_facts(path)) == ["algorithm", "problem", "schedule", "l2", "gpu", "date"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# l2: warm\n", "", "is no file of CTA times .*: it has no l2"),
        ("start_clock", "began", "is no file of CTA times .*: it has no start_clock"),
        ("softmax,1,3,", "softmax,1,4,", r"the rows of launch 1 \(softmax\) are not one for each CTA, in order"),
        ("qk,0,0,", "qk,0,0,x", "invalid literal"),
        ('"heads": 1', '"heads": 0', "heads must be a whole number of at least 1, not 0"),
        ('"heads": 1', '"hands": 1', r"problem has unknown fields \['hands'\]"),
        ("# schedule: {", "# schedule: ", "ctas.csv: "),
    ],
)
def test_is_another_file_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as error:
        read_ctas(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_is_a_missing_file_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv cannot be read"):
        read_ctas(tmp_path / "none.csv")
