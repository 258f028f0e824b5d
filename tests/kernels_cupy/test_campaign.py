"""Does a campaign write a row per launch, go on where it stopped, and refuse what it cannot tell apart?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kernels_cupy import campaign
from kernels_cupy.algorithms import kernels
from kernels_cupy.campaign import COLUMNS, Case, case_of, count
from kernels_cupy.commented_csv import read_facts, read_rows
from kernels_cupy.errors import Unavailable
from tests.kernels_cupy.test_counters import rows, values
from traces.problem import AttentionProblem

CASES = [
    case_of("naive", AttentionProblem(heads=1, seq=512, dim=64), 132, held_out=False),
    case_of("flash2", AttentionProblem(heads=1, seq=512, dim=64), 132, held_out=True),
]

Ncu = Callable[[Sequence[str], Sequence[str], float], str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Algorithms of every run of an ncu that makes all calls it is asked for but those of `flash1`."""
    runs: list[list[str]] = []

    def ncu(options: Sequence[str], child: Sequence[str], timeout_s: float) -> str:
        keys = json.loads(Path(child[1]).read_text())
        made = [number for number, (algorithm, *_) in enumerate(keys) if algorithm != "flash1"]
        Path(child[2]).write_text(json.dumps(made))
        runs.append([keys[number][0] for number in made])
        plans = {case.plan.algorithm: case.plan for case in CASES}
        return rows([(s.entry, values()) for number in made for s in kernels(plans[keys[number][0]])])

    pretend(monkeypatch, ncu)
    return runs


def pretend(monkeypatch: pytest.MonkeyPatch, ncu: Ncu, digest: str = "1") -> None:
    """A machine with a GPU and this ncu."""
    monkeypatch.setattr(campaign, "require_gpu", lambda: None)
    monkeypatch.setattr(campaign, "ncu_version", lambda: "2025.3.1.0")
    monkeypatch.setattr(campaign, "provenance", lambda *_: {"gpu": "a card", "source_sha256": digest})
    monkeypatch.setattr(campaign, "run_ncu", ncu)


def test_is_there_a_row_per_launch_with_bytes_and_provenance(tmp_path: Path, calls: list[list[str]]) -> None:
    output = tmp_path / "own.csv"
    assert count([("cold", CASES)], output, 100)
    found = list(read_rows(output))
    assert [row["kernel"] for row in found] == ["qk", "softmax", "pv", "flash2_forward"]
    assert tuple(found[0]) == COLUMNS and {row["l2"] for row in found} == {"cold"}
    assert [row["held_out"] for row in found] == ["0", "0", "0", "1"]
    assert AttentionProblem.from_dict(json.loads(found[3]["problem"])) == CASES[1].plan.problem
    assert found[0]["dram_read_bytes"] == "1000" and found[0]["l2_read_bytes"] == str(3000 * 32)
    assert read_facts(output) == {"ncu": "2025.3.1.0", "gpu": "a card", "source_sha256": "1"}


def test_does_a_second_run_measure_only_what_is_missing(tmp_path: Path, calls: list[list[str]]) -> None:
    output = tmp_path / "own.csv"
    count([("cold", CASES[:1])], output, 100)
    assert count([("cold", CASES), ("warm", CASES[:1])], output, 100)
    assert calls == [["naive"], ["flash2"], ["naive"]]
    assert count([("cold", CASES), ("warm", CASES[:1])], output, 100) and len(calls) == 3
    assert len(list(read_rows(output))) == 3 + 1 + 3


def test_are_rows_kept_apart_by_what_the_process_says_it_ran(tmp_path: Path, calls: list[list[str]]) -> None:
    left_out = case_of("flash1", AttentionProblem(heads=1, seq=512, dim=64), 132, held_out=False)
    count([("cold", [left_out, *CASES])], tmp_path / "own.csv", 100)
    assert {row["algorithm"] for row in read_rows(tmp_path / "own.csv")} == {"naive", "flash2"}


def test_does_a_failing_batch_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ncu(options: Sequence[str], child: Sequence[str], timeout_s: float) -> str:
        if "kernel" in options:
            raise Unavailable("ncu was not done in 7 s")
        Path(child[2]).write_text("[0]")
        return rows([(s.entry, values()) for s in kernels(CASES[0].plan)])

    pretend(monkeypatch, ncu)
    assert not count([("cold", CASES), ("warm", CASES)], tmp_path / "own.csv", 100)
    assert [row["l2"] for row in read_rows(tmp_path / "own.csv")] == ["warm"] * 3
    assert "cold batch of 2 calls: ncu was not done in 7 s" in capsys.readouterr().err


def test_are_measurements_of_other_kernels_not_mixed(
    tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    count([("cold", CASES)], tmp_path / "own.csv", 100)
    pretend(monkeypatch, lambda *_: "", digest="2")
    with pytest.raises(ValueError, match=r"own\.csv was measured with other kernels than these; give another --output"):
        count([("cold", CASES)], tmp_path / "own.csv", 100)


@pytest.mark.parametrize("names", [["qk", "softmax"], ["qk", "memset", "softmax", "pv"], []])
def test_are_kernels_in_another_order_refused(names: list[str]) -> None:
    with pytest.raises(Unavailable, match=f"ncu measured {len(names)} kernels where 3 were launched; number"):
        campaign.rows_of(CASES[:1], "cold", rows([(name, values()) for name in names]))


def test_is_what_the_kernels_refuse_said_in_their_sentence() -> None:
    with pytest.raises(ValueError, match="kernels of flash2: dim 40 is not a multiple of 16 up to 256"):
        case_of("flash2", AttentionProblem(dim=40), 132, held_out=False)


def test_are_all_sources_hashed() -> None:
    names = {path.name for path in campaign.sources()}
    used = {spec.source.name for case in CASES for spec in kernels(case.plan)}
    assert used <= names and {"softmax.cuh", "combine.cu"} <= names


def test_is_a_case_told_by_its_whole_plan() -> None:
    algorithm, problem, schedule = CASES[1].key
    assert algorithm == "flash2" and json.loads(problem)["seq"] == 512 and json.loads(schedule)["tile_q"] == 128
    assert Case(CASES[1].plan, held_out=False).key == CASES[1].key
