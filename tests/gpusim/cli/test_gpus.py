"""What does `gpusim gpus` show?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusim.cli.main import main
from gpusim.spec import preset_names


def test_does_the_table_list_every_preset_with_its_ridge_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("a100-80gb-sxm" in line and "153 FLOP/B" in line for line in lines)
    assert any("h200" in line and "4.814 TB/s" in line for line in lines)


def test_do_the_details_show_every_level_and_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "H200", "--set", "l2.size=120MiB"]) == 0
    out = capsys.readouterr().out
    for word in ("registers", "shared memory", "L1", "120 MiB", "L2 fabric", "HBM3e", "ridge point", "665 cycles"):
        assert word in out
    assert any(line.startswith("l2.size") and "set by --set" in line for line in out.splitlines())


def test_does_a_gpu_with_one_l2_partition_show_no_fabric(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "rtx4090"]) == 0
    out = capsys.readouterr().out
    assert "L2 fabric" not in out
    assert "24 GB (12 devices, 384 bit)" in out


def test_is_the_json_complete_and_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "h200", "--set", "l2.size=inf", "--json", "-"]) == 0
    spec = json.loads(capsys.readouterr().out)
    assert spec["sm"]["count"] == 132
    assert spec["l2"]["size_bytes"] == "inf"
    assert spec["hbm"]["timing"]["rc_ns"] == 45
    assert spec["derived"]["hbm_bus_bits"] == 6016
    assert spec["sources"]["sm.count"].startswith("measured")


def test_does_json_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "gpus.json"
    assert main(["gpus", "--json", str(target)]) == 0
    assert [spec["name"] for spec in json.loads(target.read_text())] == preset_names()
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [target]


def test_are_two_gpus_shown_side_by_side_with_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--compare", "a100-80gb-sxm", "h200"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("HBM bandwidth"))
    assert line.split() == ["HBM", "bandwidth", "2.039", "TB/s", "4.814", "TB/s", "2.36"]


def test_are_infinite_and_absent_caches_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("0", "inf"):
        assert main(["gpus", "h200", "--set", f"l2.size={size}"]) == 0
        assert main(["gpus", "--compare", "h200", "a100-80gb-sxm", "--set", f"l2.size={size}"]) == 0
    assert "inf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpus", "h300"], "'h300' is neither a file nor one of"),
        (["gpus", "h200", "--compare", "h200", "h200"], "not both"),
        (["gpus", "--set", "l2.size=3"], "needs a GPU"),
        (["gpus", "h200", "--json", "/nowhere/x.json"], "folder /nowhere does not exist"),
        (["gpus", "h200", "--compar"], "did you mean --compare"),
        (["gpus", "h200", "--compare", "h200"], "expected 2 arguments"),
    ],
)
def test_is_bad_input_one_sentence_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpusim: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
