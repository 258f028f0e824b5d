"""Does `gpusim calibrate` write a GPU file that the other commands take, and refuse what it cannot use?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpusim.cli.main import main
from kernels_cupy.toolkit import gpu_count
from tests.experiments.calibration import synthetic


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic.write_folder(tmp_path / "mine")


def calibrate(output: Path, *arguments: str) -> int:
    return main(["calibrate", "-o", str(output), "--quiet", *arguments])


def test_does_the_file_go_through_every_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, report = folder.with_suffix(".toml"), folder.parent / "report.txt"
    assert calibrate(output, "--measurements", str(folder), "--no-fit", "--report", str(report)) == 0
    printed = capsys.readouterr().out
    assert printed == report.read_text() and "no figure was fitted by simulation" in printed
    assert main(["gpus", str(output), "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "mine" and shown["sm"]["count"] == synthetic.SMS
    assert main(["simulate", "flash2", "--gpu", str(output), "--heads", "1", "--seq", "256", "--check", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["validate", "--gpu", str(output), "--only", "latency", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "0.0625 MiB         240" in printed, "compared with the folder of the same name beside the file"


def test_are_figures_fitted_by_simulation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "streams.csv").write_text("curve,x,value\nsms_dram,1,0.0768\nsms_dram,2,0.15\n")
    output = folder.parent / "fitted.toml"
    assert calibrate(output, "--measurements", str(folder), "--name", "named") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("named: Synthetic, calibrated on") and "sm.max_inflight: sms_dram" in printed
    text = output.read_text()
    assert 'name = "named"' in text and 'max_inflight = "fitted: sms_dram at 2 calibration points' in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "x.json"], "--output x.json must end in .toml"),
        (["-o", "/no/such/folder/x.toml"], "does not exist"),
        (["-o", "h200.toml"], "--output h200.toml is the name of a GPU that comes with gpusim"),
        (["-o", "x.toml", "--name", "H200"], "--name H200 is the name of a GPU that comes with gpusim"),
        (["-o", "x.toml", "--measurements", "nowhere"], "--measurements nowhere is not a folder"),
        (
            ["-o", "x.toml", "--measurements", "empty"],
            "--measurements empty has no device.json; python -m kernels_cupy",
        ),
        (["-o", "x.toml", "--measurements", "mine", "--base", "h300"], "GPU 'h300' is neither a file nor one of"),
        (["-o", "x.toml", "--report", "x.toml"], "--report x.toml is already the target of --output"),
    ],
)
def test_is_bad_input_refused_with_nothing_written(
    arguments: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("empty").mkdir()
    before = sorted(path.name for path in Path().iterdir())
    assert main(["calibrate", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device.json", "{"),
        ("device.json", '{"compute_capability": "9.0"}'),
        ("partitions.json", "no JSON"),
        ("partitions.json", "{}"),
        ("gpcs.json", '{"gpc_of_sm": []}'),
        ("rates.csv", "instruction,precision\nmma,fp16\n"),
        ("units.csv", "quantity,value\nl2_slices,many\n"),
        ("units.csv", "quantity,value\nl2_slices,31\n"),
        ("streams.csv", "curve,x,value\nread_fixed,8,fast\n"),
        ("merging.csv", "case\nx\n"),
    ],
)
def test_is_a_broken_file_refused_in_one_sentence(
    name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(text)
    output = folder.parent / "x.toml"
    assert calibrate(output, "--measurements", str(folder), "--no-fit") == 2
    error = capsys.readouterr().err
    assert error.startswith("gpusim: error: ") and error.count("\n") == 1
    assert not output.exists()


def test_is_a_machine_without_a_gpu_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if gpu_count():
        pytest.skip("this machine has a GPU")
    assert calibrate(tmp_path / "x.toml") == 2
    error = capsys.readouterr().err
    assert "no NVIDIA GPU is visible to CUDA" in error and "--measurements FOLDER" in error
    assert not list(tmp_path.iterdir())


def test_can_validate_take_any_folder_of_measurements(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder, folder.parent / "elsewhere")
    arguments = ["validate", "--measurements", str(folder.parent / "elsewhere"), "--only", "latency", "--quiet"]
    assert main(arguments) == 0
    assert "h200: mean absolute errors" in capsys.readouterr().out
    (folder.parent / "elsewhere" / "device.json").unlink()
    assert main(arguments) == 0, "curves that were measured one by one will do"
    capsys.readouterr()
    for said, path in (
        ("is not a folder", "nowhere"),
        ("has nothing measured that can be simulated", str(folder.parent)),
    ):
        assert main(["validate", "--measurements", path, "--only", "latency", "--quiet"]) == 2
        assert said in capsys.readouterr().err
    assert main(["validate", "--suite", "own", "--measurements", str(folder)]) == 2
    assert "--measurements is for --suite micro" in capsys.readouterr().err
