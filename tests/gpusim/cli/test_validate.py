"""Does `gpusim validate` print and write what it simulated, refuse what it cannot, and draw a page that works?"""

from __future__ import annotations

import csv
import pathlib

import pytest

from experiments.validation import suite
from gpusim.cli.main import main
from tests.browser import launched, needs_browser, open_page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """The folder of a run's outputs, and what it printed."""
    folder = tmp_path_factory.mktemp("validate")
    patch = pytest.MonkeyPatch()
    printed: list[str] = []
    patch.setattr("builtins.print", lambda *text, **more: printed.append(" ".join(map(str, text))))
    try:
        arguments = [
            "validate",
            "--only",
            "sms_l2",
            "--html",
            str(folder / "page.html"),
            "--csv",
            str(folder / "v.csv"),
        ]
        assert main([*arguments, "--quiet"]) == 0
    finally:
        patch.undo()
    return folder, "\n".join(printed)


def test_are_all_points_printed_and_judged(written: tuple[pathlib.Path, str]) -> None:
    out = written[1]
    assert "sms_l2: Read bandwidth from the L2 by SMs, GPC after GPC (bandwidth, B/clk)" in out
    assert out.count("held out\n") >= 4 and "of 2 targets met" in out
    assert "threads_dram" not in out


def test_does_the_csv_agree_with_what_was_measured(written: tuple[pathlib.Path, str]) -> None:
    with (written[0] / "v.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13 and {row["curve"] for row in rows} == {"sms_l2", "sms_l2_spread"}
    one = next(row for row in rows if (row["curve"], row["x"]) == ("sms_l2", "1"))
    assert one["measured"] == "84.4" and abs(float(one["error"])) < 0.15


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing_like_it"], "no curve of h200 has such a name"),
        (["--suite", "macro"], "invalid choice"),
        (["--html", "/no/such/folder/x.html"], "does not exist"),
        (["--html", "/tmp/same", "--csv", "/tmp/same"], "already the target"),
    ],
)
def test_is_bad_input_refused_before_any_work(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_is_a_gpu_without_measurements_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "h200"\nname = "mine"\n')
    assert main(["validate", "--gpu", str(file)]) == 2
    assert "no measurements of mine are at hand" in capsys.readouterr().err


def test_has_every_card_its_studies() -> None:
    from gpusim.spec import load_gpu

    assert {name for study in suite.studies_for(load_gpu("h200")) for name in study.curves} >= {
        "read_fixed.dram_share", "read_all.hit_rate", "writeback.dirty_left", "merging.ratio", "latency", "copy"
    }  # fmt: skip
    public = suite.studies_for(load_gpu("a100-80gb-sxm"))
    assert [study.curves for study in public] == [("l2_volume",), ("latency",), ("stream_read",), ("stream_scale",)]


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_does_the_page_work_in_a_browser(written: tuple[pathlib.Path, str], width: int, scheme: str) -> None:
    path = written[0] / "page.html"
    with launched() as browser:
        page, trouble = open_page(browser, path, width, scheme)
        assert trouble == []
        assert page.locator(".js-plotly-plot").count() == 2
        assert page.locator("#sms_l2 tbody tr").count() == 9 and page.locator("#summary tbody tr").count() == 2
        drawn = page.evaluate("document.getElementById('curve-0').data.map(t => [t.name, t.x.length])")
        assert drawn == [["simulated", 9], ["measured", 6], ["measured, held out", 3]]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
