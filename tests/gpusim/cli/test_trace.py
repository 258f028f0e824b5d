"""Does a recorded trace simulate to the very counters of its algorithm?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpusim.cli.main import main

SHAPE = ["--heads", "4", "--kv-heads", "2", "--seq", "320", "--dim", "64", "--causal"]
SPEED = ("wall_seconds", "sectors_per_second")


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["simulate", *arguments, "--json", "-", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return {key: value for key, value in result.items() if key not in SPEED}


@pytest.mark.parametrize("ending", ["parquet", "npz"])
@pytest.mark.parametrize("algorithm", ["naive", "flash2", "flash3"])
def test_does_a_trace_give_the_same_result(
    algorithm: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"t.{ending}"
    assert main(["trace", algorithm, *SHAPE, "--tile-q", "64", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"wrote {path}: ") and f"{path.stat().st_size:,} bytes" in out and "ops" in out
    assert list(tmp_path.iterdir()) == [path]
    direct = simulated(capsys, algorithm, *SHAPE, "--tile-q", "64", "--check")
    assert simulated(capsys, "--trace", str(path), "--check") == direct


def test_can_a_trace_run_on_another_gpu_and_be_saved_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.npz"
    assert main(["trace", "flash2", *SHAPE, "-o", str(path), "--quiet"]) == 0
    machine = ["--gpu", "a100-80gb-sxm", "--set", "l2.size=20MiB"]
    first = simulated(capsys, "--trace", str(path), *machine, "--save", str(tmp_path / "run"))
    assert first["gpu"].startswith("a100")
    again = simulated(capsys, "--trace", str(tmp_path / "run" / "flash2.parquet"), *machine)
    assert again == first


def test_is_a_trace_for_another_kind_of_gpu_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.npz")
    assert main(["trace", "flash3", *SHAPE, "-o", path, "--quiet"]) == 0
    assert main(["simulate", "--trace", path, "--gpu", "a100-80gb-sxm"]) == 2
    assert "uses wgmma instructions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flash2"], "-o/--output"),
        (["flash4", "-o", "t.npz"], "did you mean flash3?"),
        (["flash2", "-o", "t.csv"], "must end in .parquet or .npz"),
        (["flash2", "-o", "missing/t.npz"], "folder missing does not exist"),
        (["flash2", "-o", "t.npz", "--tile-q", "5"], "multiple of 16"),
        (["naive", "-o", "t.npz", "--splits", "5"], "schedule key 'splits' is not one of"),
    ],
)
def test_is_bad_input_one_sentence_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_is_a_damaged_trace_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(b"not a trace")
    assert main(["simulate", "--trace", str(path)]) == 2
    assert "is not a gpusim trace file" in capsys.readouterr().err
