"""Does the page work in a real browser: no errors, no network, right bytes, switches that switch, no overflow?"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from gpusim.report.fields import LEVELS
from gpusim.report.html import render_page, write_report
from tests.browser import launched, needs_browser, open_page
from tests.gpusim.report import sample

_SUMS = """id => Object.fromEntries(document.getElementById(id).data.filter(t => t.meta.level).map(
    t => [t.meta.level + '/' + t.name, [t.visible, t.y.reduce((a, b) => a + b, 0)]]))"""
_OVERFLOW = """() => [...document.querySelectorAll('body *')].filter(
    e => !e.closest('.scroll table, svg, script, style') && e.getBoundingClientRect().right > innerWidth + 0.5
).map(e => e.tagName + '.' + e.className)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("report") / "both.html"
    write_report(sample.both(), path)
    return path


@needs_browser
def test_loads_without_errors_or_requests(browser: Any, report: pathlib.Path) -> None:
    page, trouble = open_page(browser, report)
    assert trouble == []
    assert page.locator(".js-plotly-plot").count() == 5  # two timelines, two flows, one roofline
    buttons = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title || b.ariaLabel)")
    assert buttons and not [title for title in buttons if "Share" in title or "Plotly" in title]
    assert page.title() == "naive and flash2 on H200 · gpusim"
    page.close()


@needs_browser
def test_drawn_bytes_equal_the_tables(browser: Any, report: pathlib.Path) -> None:
    page, _ = open_page(browser, report)
    seconds = sample.BIN / sample.MACHINE["clock_hz"]
    for index, result in enumerate(sample.both()):
        sums = page.evaluate(_SUMS, f"timeline-{index}")
        assert len(sums) == len(LEVELS) * len(result["by_tensor"])
        rows = page.locator(f"#tensors .card >> nth={index} >> tbody tr")
        table = {cells[0]: cells[1:] for cells in (row.locator("th, td").all_inner_texts() for row in rows.all())}
        for tensor in result["by_tensor"]:
            for column, level in ((0, "dram_read"), (1, "dram_write"), (2, "l2_read"), (3, "l2_write"), (4, "fabric")):
                drawn = sums[f"{level}/{tensor}"][1] * 1e9 * seconds / 1e6
                assert drawn == pytest.approx(float(table[tensor][column].replace(",", "")), abs=0.006)
    page.close()


@needs_browser
def test_level_selector_switches_every_timeline(browser: Any, report: pathlib.Path) -> None:
    page, trouble = open_page(browser, report)
    for level in LEVELS:
        button = page.locator(f"button[data-level={level.key}]")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        for index in (0, 1):
            name = f"timeline-{index}"
            shown = {key.split("/")[0] for key, (visible, _) in page.evaluate(_SUMS, name).items() if visible}
            assert shown == {level.key}
            title = page.evaluate(f"document.getElementById('{name}').layout.yaxis.title.text")
            assert title == f"{level.label} (GB/s)"
    assert trouble == []
    page.close()


@needs_browser
def test_tensor_switch_scales_and_bin_table(browser: Any, report: pathlib.Path) -> None:
    page, trouble = open_page(browser, report)
    page.locator("button[data-tensor=K]").click()
    assert page.evaluate(_SUMS, "timeline-1")["dram_read/K"][0] is False
    page.locator("button[data-same-scale]").click()
    ranges = [page.evaluate(f"document.getElementById('timeline-{i}').layout.yaxis.range") for i in (0, 1)]
    assert ranges[0] == ranges[1]
    page.locator("details[data-figure=timeline-1] summary").click()
    rows = page.locator("details[data-figure=timeline-1] tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(sample.flash2()["timeline"]["l2_lookup_sectors"])
    assert trouble == []
    page.close()


@needs_browser
@pytest.mark.parametrize("width", [400, 420, 800, 1600])
def test_nothing_overflows(browser: Any, report: pathlib.Path, width: int) -> None:
    page, trouble = open_page(browser, report, width, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_OVERFLOW) == []
    assert trouble == []
    page.close()


@needs_browser
def test_figures_follow_theme_and_window(browser: Any, report: pathlib.Path) -> None:
    page, _ = open_page(browser, report)
    ink = "document.getElementById('timeline-0').layout.font.color"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {ink} !== '{light}'")
    page.set_viewport_size({"width": 420, "height": 800})
    page.wait_for_function("() => document.getElementById('flow-0').data[0].orientation === 'v'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.close()


@needs_browser
def test_names_are_text_not_markup(browser: Any, tmp_path: pathlib.Path) -> None:
    result = sample.flash2()
    evil = "</script><img src=x onerror=alert(1)>"
    result["kernels"][0]["name"] = result["algorithm"] = result["schedule"]["note"] = evil
    result["by_tensor"][evil] = result["by_tensor"].pop("LSE")
    write_report([result], tmp_path / "evil.html")
    page, trouble = open_page(browser, tmp_path / "evil.html")
    assert trouble == []
    assert page.locator("img").count() == 0
    page.close()


def test_plotly_is_inlined_once() -> None:
    page = render_page(sample.both())
    assert page.count("plotly.js v") == 1
    assert "<script src" not in page and '<link rel="stylesheet' not in page


def test_result_without_timeline_says_so() -> None:
    result = sample.naive()
    del result["timeline"]
    assert "stored without a timeline" in render_page([result])


def test_failed_write_leaves_the_old_page(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    broken = sample.naive()
    del broken["total"]
    with pytest.raises(KeyError):
        write_report([broken], path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
