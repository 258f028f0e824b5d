"""Does `gpusim run` refuse what cannot run in one sentence?"""

from __future__ import annotations

import pytest

from gpusim.cli.main import main
from kernels_cupy.toolkit import gpu_count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nave"], "algorithm 'nave' has no CUDA kernels, only naive"),
        (["naive", "--heads", "3", "--kv-heads", "2"], "kv_heads 2 does not divide heads 3"),
        (["naive", "--l2", "hot"], "--l2"),
        (["naive", "--json", "missing/x.json"], "folder missing does not exist"),
    ],
)
def test_is_bad_input_one_sentence_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_is_a_missing_gpu_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "naive"]) == 2
    assert "no NVIDIA GPU is visible to CUDA" in capsys.readouterr().err


@pytest.mark.gpu
def test_does_a_small_run_pass_verification(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "naive", "--heads", "2", "--seq", "300", "--verify", "--repeat", "2"]) == 0
    assert "O: relative error" in capsys.readouterr().out
