"""Does `gpusim compare --ctas` simulate what its file says, and show both sides?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusim.cli.main import main

SHAPE = ["--heads", "2", "--seq", "512", "--dim", "64", "--causal", "--quiet"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CTAs of kernels that a slower simulated GPU ran, as if they had been measured."""
    path = tmp_path_factory.mktemp("ctas") / "naive.csv"
    slower = ["--set", "noc.fabric_latency=2000", "--tile-q", "64", "--l2", "flush"]
    assert main(["simulate", "naive", *SHAPE, *slower, "--ctas", str(path)]) == 0
    path.write_text(path.read_text().replace("# gpu: h200, simulated", "# gpu: a card\n# date: 2026-11-30"))
    return path


def test_are_problem_schedule_and_l2_those_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "naive", "--ctas", str(file), "--quiet", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["l2"] == "flush" and said["problem"]["seq"] == 512 and said["schedule"]["tile_q"] == 64
    assert said["source"] == str(file) and said["provenance"] == {"gpu": "a card", "date": "2026-11-30"}
    assert [kernel["name"] for kernel in said["kernels"]] == ["qk", "softmax", "pv"]
    for kernel in said["kernels"]:
        assert kernel["same_sm_first_wave"] == 1
        assert kernel["span_cycles"]["simulated"] < kernel["span_cycles"]["measured"]


def test_is_the_same_machine_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = ["--set", "noc.fabric_latency=2000"]
    assert main(["compare", "naive", "--ctas", str(file), "--quiet", *same, "--json", "-"]) == 0
    for kernel in json.loads(capsys.readouterr().out)["kernels"]:
        assert kernel["same_sm"] == 1 and kernel["points_to"] is None
        for sides in (value for value in kernel.values() if isinstance(value, dict)):
            assert sides["measured"] == pytest.approx(sides["simulated"], abs=0.01)


def test_is_the_table_readable(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "naive", "--ctas", str(file), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "naive on h200: 2 heads × 512 × 64 fp16 causal, L2 flush" in said
    assert f"measured: {file} (gpu=a card date=2026-11-30)" in said
    for text in (
        "running CTAs",
        "idle at the end",
        "95th percentile",
        "qk: 100.0% of",
        "the largest difference is one of",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flash2"], "is of naive, not of flash2"),
        (["naive", "--seq", "64"], "leave out --seq"),
        (["naive", "--html", "page.html"], "there is no page of CTAs"),
        (["naive", "--stored"], "not allowed with"),
        (["naive", "--gpu", "v100-sxm2"], "which v100-sxm2 does not have"),
    ],
)
def test_is_bad_input_refused(
    arguments: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments, "--ctas", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


def test_is_a_file_of_other_launches_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "short.csv"
    short.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("pv,")))
    assert main(["compare", "naive", "--ctas", str(short), "--quiet"]) == 2
    assert "measured are qk of " in capsys.readouterr().err
