"""Do the attention suites of `gpusim validate` print, write and refuse what they should?"""

from __future__ import annotations

import csv
import pathlib

import pytest

from experiments import own_measurements
from experiments.accuracy import cases
from gpusim.cli.main import main
from tests.browser import launched, needs_browser, open_page
from tests.experiments.own_file import small_plan, write_own


@pytest.fixture
def own_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Own measurements made of simulated numbers; tests without it find none."""
    path = tmp_path / "own_kernels.csv"
    monkeypatch.setattr(own_measurements, "own_path", lambda gpu: path)
    return path


def test_is_a_simulated_run_paired_with_its_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--suite", "torch", "--only", "decode_flash B1_H32_Hkv8_M4096_d128 cold", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "h200, PyTorch's kernels: 2 kernels of 1 runs" in out
    assert "held out" in out and "calibration" not in out and "worst kernels" in out


def test_are_own_kernels_compared(own_file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_own(own_file, [small_plan("flash2")], held_out=1)
    table = own_file.with_name("table.csv")
    assert main(["validate", "--suite", "own", "--csv", str(table), "--quiet"]) == 0
    assert "h200, kernels of this repository: 2 kernels of 2 runs" in capsys.readouterr().out
    rows = list(csv.DictReader(table.open(newline="")))
    assert [row["l2"] for row in rows] == ["flush", "warm"] and {row["held_out"] for row in rows} == {"1"}
    assert all(abs(float(row["error_cycles"])) < 1e-3 and row["error_sm_read_bytes"] == "0.0000" for row in rows)


def test_are_missing_own_measurements_one_sentence(own_file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not own_file.exists()
    assert main(["validate", "--suite", "own"]) == 2
    assert "no kernels of this repository are measured on h200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stored"], "--stored is for --suite torch and own"),
        (["--jobs", "2"], "--jobs is for --suite torch and own"),
        (["--suite", "torch", "--stored", "--set", "l2.ways=32"], "leave out --set"),
        (["--suite", "torch", "--stored", "--only", "nothing_like_it"], "no measured run is left"),
        (["--suite", "torch", "--gpu", "v100-sxm2"], "no PyTorch's kernels are measured on v100-sxm2"),
    ],
)
def test_is_bad_input_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 2
    assert said in capsys.readouterr().err


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_does_the_page_work_in_a_browser(tmp_path: pathlib.Path, width: int, scheme: str) -> None:
    path = tmp_path / "page.html"
    assert main(["validate", "--suite", "torch", "--stored", "--html", str(path), "--quiet"]) == 0
    with launched() as browser:
        page, trouble = open_page(browser, path, width, scheme)
        assert trouble == []
        assert page.locator(".js-plotly-plot").count() == len(cases.FIELDS)
        assert page.locator("#worst tbody tr").count() == 10
        assert page.evaluate("document.documentElement.scrollWidth") <= width
