"""Is a file of own measurements read back as it was written, and a broken one refused?"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from experiments.own_measurements import COLUMNS, PROVENANCE, SIMULATED_L2, own_provenance, own_runs
from kernels_cupy import campaign
from tests.experiments.own_file import SMALL, small_plan, write_own


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own_kernels.csv"
    write_own(path, [small_plan("naive"), small_plan("flash2")], held_out=1)
    return path


def test_are_runs_told_apart_and_complete(file: Path) -> None:
    runs = own_runs("h200", file)
    assert [(r.algorithm, r.l2, len(r.kernels)) for r in runs] == [
        ("naive", "flush", 3), ("naive", "warm", 3), ("flash2", "flush", 1), ("flash2", "warm", 1)
    ]  # fmt: skip
    assert all(r.problem == SMALL and r.held_out for r in runs)
    assert runs[2].schedule == small_plan("flash2").schedule.to_dict()
    assert [k["name"] for k in runs[0].kernels] == ["qk", "softmax", "pv"]
    assert runs[0].kernels[0]["sm_read_bytes"] > 0 and runs[3].kernels[0]["dram_read_bytes"] == 0


def test_are_the_same_runs_measured_twice_two_runs(file: Path, tmp_path: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    start = len(PROVENANCE) + 1
    twice = tmp_path / "own_kernels.csv"
    twice.write_text("".join([*lines[: start + 3], *lines[start : start + 3]]))
    assert [len(r.kernels) for r in own_runs("h200", twice)] == [3, 3]


def test_is_the_provenance_read(file: Path) -> None:
    assert tuple(own_provenance("h200", file)) == PROVENANCE and own_provenance("h200", file)["date"] == "2026-11-30"


def test_is_a_missing_file_no_measurement(tmp_path: Path) -> None:
    assert own_runs("h200", tmp_path / "none.csv") == [] and own_provenance("h200", tmp_path / "none.csv") == {}


def test_is_an_empty_cell_not_a_number(file: Path, tmp_path: Path) -> None:
    lines = file.read_text().splitlines()
    first = lines[len(PROVENANCE) + 1].rsplit(",", 2)
    changed = tmp_path / "own_kernels.csv"
    changed.write_text("\n".join([*lines[: len(PROVENANCE) + 1], f"{first[0]},,{first[2]}"]))
    assert math.isnan(own_runs("h200", changed)[0].kernels[0][COLUMNS[-2]])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("fabric_bytes", "fabric", "no column fabric_bytes"),
        (",cold,", ",hot,", "column l2 holds 'hot', not cold or warm"),
        (",1\n", ",yes\n", "column held_out holds 'yes', not 0 or 1"),
    ],
)
def test_is_a_broken_file_refused(file: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    broken = tmp_path / "own_kernels.csv"
    broken.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=said):
        own_runs("h200", broken)


def test_does_the_campaign_write_what_is_read() -> None:
    assert set(COLUMNS) <= set(campaign.COLUMNS) and set(SIMULATED_L2) == set(campaign.REPLAY)


def test_are_files_of_the_campaign_read(file: Path, tmp_path: Path) -> None:
    case = campaign.Case(small_plan("flash2"), held_out=True)
    row = dict.fromkeys(campaign.COUNTED, "7") | dict(zip(campaign.KEY, (*case.key, "warm"), strict=True))
    written = tmp_path / "own_kernels.csv"
    with written.open("w", newline="") as output:
        output.write("# ncu: 2025.3.1\n# date: 2026-11-30\n")
        writer = csv.DictWriter(output, campaign.COLUMNS)
        writer.writeheader()
        writer.writerow(row | {"kernel": "flash2_forward", "held_out": 1})
    (run,) = own_runs("h200", written)
    assert (run.problem, run.schedule, run.held_out) == (SMALL, case.plan.schedule.to_dict(), True)
    assert run.kernels[0]["cycles"] == 7 and own_provenance("h200", written)["ncu"] == "2025.3.1"
