"""Is the measured grid complete, in order, and a stated quarter of it held out?"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.campaign import ATTENTION, FIRST_BATCH, GRID, batches, cases, main
from experiments.own_measurements import own_runs
from kernels_cupy.algorithms import KERNELS
from kernels_cupy.campaign import COUNTED
from traces.problem import AttentionProblem

HEADER = "algorithm,problem,schedule,l2,kernel," + ",".join(COUNTED) + ",held_out"


@pytest.mark.parametrize("algorithm", KERNELS)
def test_is_every_fourth_shape_held_out(algorithm: str) -> None:
    supported, _ = cases(algorithm)
    assert [case.held_out for case in supported] == [i % 4 == 3 for i in range(len(supported))]
    assert sum(case.held_out for case in supported) >= 3
    assert len({case.key for case in supported}) == len(supported)


def test_do_held_out_shapes_cover_what_the_others_do() -> None:
    held = [case.plan.problem for name in KERNELS for case in cases(name)[0] if case.held_out]
    assert {p.causal for p in held} == {False, True}
    assert {64, 128} <= {p.dim for p in held}
    assert any(p.group > 1 and p.seq > 1 for p in held) and any(p.page_size == 16 for p in held)


def test_do_batches_measure_everything_cold_and_warm_small_shapes_first() -> None:
    names = ["naive", "flash2"]
    all_cases = [case.key for name in names for case in cases(name)[0]]
    found = list(batches(names))
    assert [l2 for l2, _ in found] == ["cold", "warm", "cold", "warm"]
    for state in ("cold", "warm"):
        assert sorted(case.key for l2, batch in found if l2 == state for case in batch) == sorted(all_cases)
    assert len(found[0][1]) == FIRST_BATCH * len(names)


@pytest.mark.parametrize(("algorithm", "added"), [("naive", 1), ("naive_online_softmax", 1), ("flash2_backward", 4)])
def test_do_shapes_that_came_later_follow_all_others(algorithm: str, added: int) -> None:
    """So that what was held out of earlier measurements still is, and nothing else of them."""
    measured = [
        AttentionProblem(**shape)
        for shape in ATTENTION
        if algorithm != "flash2_backward" or (shape["dim"] <= 128 and shape["seq"] <= 8192)
    ]
    found = [case.plan.problem for case in cases(algorithm)[0]]
    assert found[:-added] == [problem for problem in measured if problem in found]
    assert not set(found[-added:]) & set(measured)
    assert any(case.held_out for case in cases("flash2_backward")[0] if case.plan.problem.dim == 256)


def test_does_the_list_say_what_is_measured_and_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"heads": 8, "seq": 512, "dim": 264}, {"heads": 8, "lengths": (512, 30), "dim": 128}
    monkeypatch.setitem(GRID, "naive", [*GRID["naive"], *shapes])
    assert main(["naive", "--list"]) == 0
    said = capsys.readouterr().out
    assert said.count("held out") == sum(case.held_out for case in cases("naive")[0])
    assert "refused: naive heads=8 seq=512 dim=264: kernels of naive: dim 264 is not a multiple of 8 up to 256" in said
    assert "naive                  B2 H8 Hkv8 N512 M512 d128 lengths 512,30" in said
    assert "s in all" in said


def test_is_an_unknown_algorithm_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flsh2", "--list"]) == 2
    assert capsys.readouterr().err.startswith("campaign: error: algorithm 'flsh2' has no CUDA kernels")


def test_are_measured_rows_read_back(tmp_path: Path) -> None:
    numbers = ",".join(str(i + 1) for i in range(len(COUNTED)))
    row = f'flash2,"{{""heads"": 2, ""seq"": 64}}","{{""tile_q"": 128}}",warm,flash2_forward,{numbers},1'
    (tmp_path / "own.csv").write_text(f"# gpu: a card\n{HEADER}\n{row}\n")
    (run,) = own_runs("h200", tmp_path / "own.csv")
    assert run.problem.heads == 2 and run.schedule == {"tile_q": 128} and run.held_out
    (launch,) = run.kernels
    assert launch["time_us"] == 1 and run.l2 == "warm" and launch["name"] == "flash2_forward"
