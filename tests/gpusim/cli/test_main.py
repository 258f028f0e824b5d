"""Does the entry point stay light and answer every ending with the right status?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpusim.cli import gpus
from gpusim.cli.main import COMMANDS, main

HEAVY = ("numba", "simpy", "plotly", "pyarrow", "cupy", "numpy")


@pytest.mark.parametrize("arguments", [["--help"], ["gpus"]])
def test_are_the_heavy_libraries_left_alone_where_they_are_not_needed(arguments: list[str]) -> None:
    program = (
        "import sys; from gpusim.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_does_help_list_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out and summary in out for name, summary, _ in COMMANDS)


def test_is_a_mistyped_command_answered_with_the_one_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 2
    assert "did you mean gpus?" in capsys.readouterr().err


def test_is_an_interrupt_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpus, "run", interrupted)
    assert main(["gpus"]) == 130


def test_does_a_bug_keep_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(gpus, "run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["gpus"])


def test_is_a_reader_that_stops_reading_no_error() -> None:
    command = f"{sys.executable} -m gpusim gpus h200 | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
