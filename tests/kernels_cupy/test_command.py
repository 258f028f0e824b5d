"""Is what a run needs compiled for another machine, and a file that cannot be written refused before anything runs?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusim.cli.main import main as gpusim
from kernels_cupy import __main__
from kernels_cupy.algorithms import kernels
from kernels_cupy.compile import is_compiled
from kernels_cupy.cta_record import recording
from kernels_cupy.stopwatch import BETWEEN
from tests.kernels_cupy.compiling import plan_of

Command = Callable[[list[str]], int]
SMALL = ["naive", "--heads", "1", "--seq", "256", "--dim", "64"]


@pytest.fixture(params=["gpusim run", "python -m kernels_cupy"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Either command, with its arguments."""

    def command(arguments: list[str]) -> int:
        if request.param == "gpusim run":
            return gpusim(["run", *arguments])
        monkeypatch.setattr(sys, "argv", ["kernels_cupy", *arguments])
        return __main__.main()

    return command


@pytest.mark.parametrize("recorded", [False, True])
def test_are_cubins_made_for_another_machine(
    recorded: bool, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSIM_CACHE", str(tmp_path / "cache"))
    options = ["--ctas", "elsewhere/ctas.csv"] if recorded else []
    assert run([*SMALL, *options, "--compile", str(tmp_path / "cubins"), "--arch", "sm_80"]) == 0
    monkeypatch.setenv("GPUSIM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("GPUSIM_CUBINS", str(tmp_path / "cubins"))
    specs = kernels(plan_of("naive", heads=1, seq=256, dim=64))
    assert is_compiled(BETWEEN, {}, "sm_80")
    assert all(is_compiled(spec.source, spec.defines, "sm_80") for spec in specs)
    assert [is_compiled(spec.source, recording(spec).defines, "sm_80") for spec in specs] == [recorded] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ctas", "missing/ctas.csv"], "--ctas missing/ctas.csv: folder missing does not exist"),
        (["--ctas", "."], "is a folder, not a file"),
        (["--json", "missing/run.json"], "--json missing/run.json: folder missing does not exist"),
        (["--compile", __file__], f"--compile {__file__}: File exists"),
    ],
)
def test_is_what_cannot_be_written_refused(
    options: list[str], message: str, run: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_runs() -> None:
        raise AssertionError("the GPU has been asked for")

    monkeypatch.setattr("kernels_cupy.command.current_gpu", nothing_runs)
    assert run([*SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["naive", "flash2_backward"])
def test_does_verify_pass(run: Command, algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A backward pass needs the O and LSE of its Q, K and V."""
    assert run([algorithm, *SMALL[1:], "--repeat", "1", "--verify"]) == 0
    assert "passes" in capsys.readouterr().out


@pytest.mark.gpu
def test_does_a_run_write_its_ctas(run: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kernels_cupy.cta_file import read_ctas

    path = tmp_path / "ctas.csv"
    assert run([*SMALL, "--repeat", "2", "--ctas", str(path)]) == 0
    said, found = capsys.readouterr().out, read_ctas(path)
    assert "first starts within ns" in said and "times the median" in said
    assert [(t.kernel, t.ctas) for t in found.launches] == [
        (s.name, s.ctas) for s in kernels(plan_of("naive", heads=1, seq=256, dim=64))
    ]
    assert {"gpu", "driver", "date", "source_sha256", "run_us", "recorded_run_us"} <= set(found.provenance)
    assert gpusim(["compare", "naive", "--ctas", str(path), "--quiet"]) == 0
