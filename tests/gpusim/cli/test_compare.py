"""Does `gpusim compare` show the measured run next to the simulation of the very same plan, and say what is missing?"""

from __future__ import annotations

import json
import pathlib

import pytest

from experiments import own_measurements
from experiments.accuracy.quantities import FIELDS
from gpusim.cli.main import main
from kernels_cupy.toolkit import gpu_count
from tests.experiments.own_file import small_plan, write_own

SMALL = ["--heads", "2", "--seq", "512", "--dim", "64", "--causal", "--quiet"]
no_gpu = pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")


@pytest.fixture(scope="module")
def own_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Own measurements: simulated numbers, DRAM bytes and cycles doubled."""
    path = tmp_path_factory.mktemp("own") / "own_kernels.csv"
    write_own(path, [small_plan("flash2"), small_plan("naive")], scaled=2)
    return path


@pytest.fixture
def stored(own_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_measurements, "own_path", lambda gpu: own_file)


@pytest.mark.usefixtures("stored")
def test_are_both_sides_and_their_error_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "flash2", "--stored", *SMALL, "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [k["name"] for k in said["kernels"]] == ["flash2_forward"] and said["l2"] == "cold"
    assert said["schedule"]["instruction"] == "mma_sync"  # the kernels', not the simulator's default
    (kernel,) = said["kernels"]
    assert set(kernel) == {"name", *FIELDS}
    assert kernel["cycles"]["error"] == pytest.approx(-50)
    assert kernel["cycles"]["measured"] == 2 * kernel["cycles"]["simulated"]
    assert kernel["sm_read_bytes"]["error"] == 0 and kernel["dram_read_bytes"]["error"] is None  # under 4 MB
    assert kernel["l2_hit_rate"]["error"] == pytest.approx(0, abs=1e-9)
    total, closed = said["total"], said["analytic"]
    textbook = total["dram_read_bytes"]["closed_form"] + total["dram_write_bytes"]["closed_form"]
    assert textbook == closed["hbm_bytes"] == 8 * 2 * 512 * 64
    assert total["sm_read_bytes"]["closed_form"] == total["sm_read_bytes"]["simulated"]
    assert closed["measured_over_closed_form"] == pytest.approx(2 * closed["simulated_over_closed_form"])


@pytest.mark.usefixtures("stored")
def test_is_a_run_of_several_kernels_summed(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["--heads", "2", "--seq", "512", "--dim", "64", "--causal", "--quiet"]
    assert main(["compare", "naive", "--stored", "--l2", "warm", *problem, "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [k["name"] for k in said["kernels"]] == ["qk", "softmax", "pv"]
    for field in FIELDS:
        if field != "l2_hit_rate":
            sides = [k[field]["measured"] for k in said["kernels"]]
            assert said["total"][field]["measured"] == pytest.approx(sum(sides))


@pytest.mark.usefixtures("stored")
def test_is_the_table_readable_and_the_page_complete(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", "flash2", "--stored", *SMALL, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "flash2 on h200: 2 heads × 512 × 64 fp16 causal, L2 cold" in text
    assert "measured: stored, 2026-11-30" in text and "-50.0 %" in text and "closed form 0.52 MB" in text
    html = page.read_text()
    assert 'id="bytes"' in html and 'id="errors"' in html and "flash2_forward" in html


@pytest.mark.usefixtures("stored")
def test_does_a_file_of_a_run_bring_problem_schedule_and_l2(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run, *_) = [r for r in own_measurements.own_runs("h200") if r.l2 == "warm"]
    result = {"algorithm": run.algorithm, "problem": run.problem.to_dict(), "schedule": dict(run.schedule)}
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**result, "l2": run.l2, "kernels": [dict(k) for k in run.kernels]}))
    assert main(["compare", "flash2", "--measurement", str(file), "--quiet", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["l2"] == "warm" and said["problem"]["seq"] == 512
    assert said["kernels"][0]["cycles"]["error"] == pytest.approx(-50)
    assert main(["compare", "naive", "--measurement", str(file)]) == 2
    assert "is of flash2, not of naive" in capsys.readouterr().err
    assert main(["compare", "flash2", "--measurement", str(file), "--seq", "64"]) == 2
    assert "leave out --seq" in capsys.readouterr().err
    file.write_text(json.dumps({**result, "l2": run.l2, "kernels": [{"name": "flash2_forward", "time_us": 1.0}]}))
    assert main(["compare", "flash2", "--measurement", str(file)]) == 2
    assert "holds no dram_read_bytes; measure it with gpusim run --counters" in capsys.readouterr().err


@pytest.mark.usefixtures("stored")
def test_are_stored_runs_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "flash2", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "flash2 2 heads × 512 × 64 fp16 causal flush",
        "flash2 2 heads × 512 × 64 fp16 causal warm",
    ]


@pytest.mark.usefixtures("stored")
def test_is_an_empty_l2_before_the_run_the_same_for_one_kernel_only(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in ((["flash2", "--l2", "flush"], 0), (["naive", "--l2", "flush"], 0), (["naive"], 2)):
        assert main(["compare", *arguments, "--stored", *SMALL]) == status
    assert "no measurement of naive with this problem, schedule and --l2 cold" in capsys.readouterr().err


@no_gpu
@pytest.mark.usefixtures("stored")
def test_is_what_is_missing_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "flash2", "--heads", "3", "--seq", "100", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    for part in ("no NVIDIA GPU is visible", "--l2 cold is stored for h200", "gpusim run flash2 --counters --json"):
        assert part in captured.err
    assert main(["compare", "flash2", "--live", *SMALL]) == 2
    assert "no NVIDIA GPU is visible" in capsys.readouterr().err


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nave"], "algorithm 'nave' has no CUDA kernels"),
        (["flash2", "--live", "--stored"], "not allowed with"),
        (["flash2", "--schedule", "best"], "the kernels have their own"),
        (["flash2", "--dim", "12"], "dim 12 is not a multiple of 16"),
        (["flash2", "--stored", "--tile-q", "64", *SMALL], "no measurement of flash2"),
        (["flash2", "--measurement", "no/such.json"], "cannot be read as JSON"),
        (["flash2", "--json", "missing/x.json"], "folder missing does not exist"),
    ],
)
def test_is_bad_input_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and said in captured.err


@pytest.mark.gpu
def test_does_a_live_run_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "flash2", "--live", *SMALL, "--repeat", "2", "--json", "-"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["sm_read_bytes"]["error"] == pytest.approx(0, abs=1)
