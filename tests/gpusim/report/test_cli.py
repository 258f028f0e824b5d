"""Does `gpusim report` read stored results, write what is asked for, and say plainly what is wrong?"""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest

from gpusim.cli.report import add_arguments, run
from gpusim.errors import UserError
from tests.gpusim.report import sample


def _run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "naive.json"
    path.write_text(json.dumps(sample.naive()))
    return path


def test_prints_the_table(stored: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(stored) == 0
    assert "softmax" in capsys.readouterr().out


def test_a_file_may_hold_a_list(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "both.json"
    path.write_text(json.dumps(sample.both()))
    assert _run(path) == 0
    assert "against naive" in capsys.readouterr().out


def test_writes_both_files_and_leaves_no_parts(stored: pathlib.Path, tmp_path: pathlib.Path) -> None:
    html, trace = tmp_path / "out.html", tmp_path / "out.json"
    assert _run(stored, "--html", html, "--perfetto", trace) == 0
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert {p.name for p in tmp_path.iterdir()} == {"naive.json", "out.html", "out.json"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not a JSON file"),
        ("[]", "empty list"),
        ("3", "not a gpusim result"),
        ('{"gpu": "H200"}', "has no 'algorithm'"),
    ],
)
def test_malformed_file_is_one_sentence(tmp_path: pathlib.Path, content: str, complaint: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(UserError, match=complaint) as caught:
        _run(path)
    assert "bad.json" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_counter_names_the_kernel(tmp_path: pathlib.Path) -> None:
    result = sample.naive()
    del result["kernels"][1]["fabric_bytes"]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(result))
    with pytest.raises(UserError, match="kernel 1 has no 'fabric_bytes'"):
        _run(path)


def test_timeline_rows_must_have_one_length(tmp_path: pathlib.Path) -> None:
    result = sample.naive()
    result["timeline"]["l2_hit_sectors"].pop()
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(result))
    with pytest.raises(UserError, match="one length"):
        _run(path)


def test_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.json"):
        _run(tmp_path / "nowhere.json")


def test_unwritable_target(stored: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        _run(stored, "--html", tmp_path / "no" / "such" / "folder.html")
