"""Does `gpusim simulate ALGO --train` run both passes and say so?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusim.cli.main import main

SHAPE = ["--heads", "2", "--seq", "256", "--dim", "64", "--quiet"]


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["simulate", *arguments, *SHAPE, "--json", "-"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_is_a_step_the_forward_and_the_backward_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    step = simulated(capsys, "flash2", "--train", "--check", "--save", str(tmp_path / "saved"))
    names = [k["name"] for k in step["kernels"]]  # type: ignore[attr-defined]
    assert names == ["flash2_forward", "row_sums", "flash2_backward", "convert_dQ"]
    assert step["schedule"]["tile_kv"] == 128 and step["schedule"]["backward.tile_kv"] == 128  # type: ignore[index]
    again = json.loads((tmp_path / "saved" / "result.json").read_text())
    assert again["kernels"] == step["kernels"]
    assert main(["simulate", "--trace", str(tmp_path / "saved" / "flash2.parquet"), "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == step["kernels"]


def test_do_schedule_keys_with_the_prefix_change_the_backward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    step = simulated(capsys, "flash2", "--train", "--tile-q", "64", "--set-schedule", "backward.tile_kv=64")
    assert step["schedule"]["tile_q"] == 64 and step["schedule"]["backward.tile_kv"] == 64  # type: ignore[index]
    assert [k["ctas"] for k in step["kernels"]] == [8, 4, 8, 4]  # type: ignore[attr-defined]


def test_are_wrong_uses_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", "flash2_backward", "--train", *SHAPE]) == 2
    assert "algorithm 'flash2_backward' cannot be trained" in capsys.readouterr().err
    assert main(["simulate", "--trace", str(tmp_path / "x.npz"), "--train"]) == 2
    assert "leave out --train" in capsys.readouterr().err


def test_do_the_closed_forms_of_a_step_count_both_passes(capsys: pytest.CaptureFixture[str]) -> None:
    step = simulated(capsys, "flash2", "--train", "--analytic")
    bytes_per_tensor = 2 * 256 * 64 * 2
    assert step["analytic"]["hbm_bytes"] == (4 + 8) * bytes_per_tensor  # type: ignore[index]
    assert step["analytic"]["flops"] == 14 * 2 * 256 * 256 * 64  # type: ignore[index]
