"""Is the measured grid complete, in order, and a stated quarter of it held out?"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.campaign import FIRST_BATCH, batches, cases, main
from experiments.own_measurements import own_runs
from kernels_cupy.algorithms import KERNELS
from kernels_cupy.campaign import COUNTED

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


def test_does_the_list_say_what_is_measured_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flash2_backward", "--list"]) == 0
    said = capsys.readouterr().out
    assert said.count("held out") == sum(case.held_out for case in cases("flash2_backward")[0])
    assert "refused: flash2_backward heads=8 seq=2048 dim=256: kernels of flash2_backward: dim 256 is not" in said
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
