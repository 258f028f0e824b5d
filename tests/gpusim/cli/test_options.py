"""Do the shared options become the problem, the GPU and the files that the user meant?"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gpusim.cli import options
from gpusim.cli.main import Parser
from gpusim.errors import UserError


def parsed(*arguments: str) -> argparse.Namespace:
    parser = Parser(allow_abbrev=False)
    options.add_problem_options(parser)
    options.add_machine_options(parser)
    options.add_schedule_options(parser)
    options.add_output_options(parser)
    return parser.parse_args(arguments)


def test_what_is_simulated_by_default() -> None:
    args = parsed()
    problem = options.problem_from(args)
    assert (problem.batch, problem.heads, problem.kv_heads) == (1, 32, 32)
    assert (problem.seq, problem.seq_kv, problem.dim, problem.dtype) == (4096, 4096, 128, "fp16")
    assert options.gpu_from(args).name == "h200"
    assert args.l2 == "cold"


def test_does_an_explicit_option_win_over_the_model() -> None:
    problem = options.problem_from(parsed("--model", "llama-3.1-8b", "--kv-heads", "4", "--seq", "64", "--causal"))
    assert (problem.heads, problem.kv_heads, problem.dim, problem.seq, problem.causal) == (32, 4, 128, 64, True)


def test_does_set_change_the_gpu() -> None:
    assert options.gpu_from(parsed("--set", "sm.count=8", "--set", "l2.ways=4")).sm.count == 8


def test_which_schedule_setting_wins() -> None:
    args = parsed("--tile-q", "64", "--set-schedule", "tile_q=32", "--set-schedule", "kv_order = sawtooth")
    assert options.schedule_settings(args) == {"tile_q": "32", "kv_order": "sawtooth"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "0"], "'0' is not a whole number of at least 1"),
        (["--heads", "x"], "'x' is not a whole number"),
        (["--heads", "32", "--kv-heads", "5"], "kv_heads 5 does not divide heads 32"),
        (["--dtype", "fp17"], "fp17"),
        (["--model", "gpt-9"], "'gpt-9' is neither"),
    ],
)
def test_is_a_bad_problem_refused_in_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        options.problem_from(parsed(*arguments))
    assert message in str(caught.value)


def test_do_lengths_and_splits_reach_the_problem_and_the_schedule() -> None:
    args = parsed("--lengths", "300,0,12", "--window", "64", "--causal", "--splits", "4")
    problem = options.problem_from(args)
    assert (problem.batch, problem.seq, problem.lengths, problem.window) == (3, 300, (300, 0, 12), 64)
    assert options.schedule_settings(args) == {"splits": "4"}
    assert options.schedule_settings(parsed("--splits", "0")) == {"splits": "0"}, "as many as fill the GPU"


def test_is_a_setting_without_a_value_refused() -> None:
    with pytest.raises(UserError, match="kv_order"):
        options.schedule_settings(parsed("--set-schedule", "kv_order"))


def test_are_outputs_checked_before_any_work(tmp_path: Path) -> None:
    here = str(tmp_path)
    file = str(tmp_path / "taken")
    Path(file).touch()
    options.check_outputs(parsed("--json", "-", "--html", f"{here}/a.html", "--save", f"{here}/new/folder"))
    for arguments, message in (
        (["--html", here], "is a folder"),
        (["--html", f"{here}/missing/a.html"], "does not exist"),
        (["--save", file], "is a file"),
        (["--save", f"{file}/x"], "cannot be written"),
        (["--json", f"{here}/a", "--html", f"{here}/a"], "already the target of --json"),
    ):
        with pytest.raises(UserError, match=message):
            options.check_outputs(parsed(*arguments))


def test_does_a_failed_write_leave_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result.json"
    options.atomic_write(target, "old")

    def full(source: object, destination: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left"):
        options.atomic_write(target, b"new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_can_output_go_to_a_device() -> None:
    options.atomic_write("/dev/null", "x")
