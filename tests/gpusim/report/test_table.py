"""Does the text table show the counters' numbers, aligned, within 110 columns?"""

from __future__ import annotations

import copy

import pytest

from gpusim.report.table import WIDTH, render
from tests.gpusim.report import sample


def _row(text: str, name: str, nth: int = 0) -> list[str]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [name]][nth]


def test_kernel_row_has_time_and_utilisation() -> None:
    text = render([sample.naive()])
    assert _row(text, "scores") == ["scores", "8192", "540000", "307.69", "446.6", "62.0%", "62.0%", "75.2%"]


def test_total_row_has_megabytes_of_every_level() -> None:
    total = sample.naive()["total"]
    cells = [float(cell) for cell in _row(render([sample.naive()]), "total", 1)[1:]]
    assert cells[0] == pytest.approx(total["dram_read_bytes"] / 1e6, abs=0.005)
    assert cells[7] == pytest.approx(total["shared_read_bytes"] / 1e6, abs=0.005)
    assert cells[-1] == pytest.approx(total["dirty_bytes_left"] / 1e6, abs=0.005)


def test_tensor_rows_add_up_to_the_total_row() -> None:
    text = render([sample.flash2()])
    rows = [[float(c) for c in _row(text, name)[1:]] for name in ("Q", "K", "V", "O", "LSE")]
    total = [float(c) for c in _row(text, "total", 1)[1:]]
    assert [sum(column) for column in zip(*rows, strict=True)] == pytest.approx(total, abs=0.03)


def test_closed_form_stands_next_to_the_simulated_bytes() -> None:
    text = render([sample.flash2()])
    assert _row(text, "closed") == ["closed", "form", "134.74", "2040.94"]
    assert _row(text, "simulated") == ["simulated", "132.30", "2078.63", "0.982x"]
    assert "h · (8·N·d + 4·N) bytes" in text
    assert "ridge point 195.26 FLOP/byte; bound by compute" in text


def test_several_results_end_with_ratios_to_the_first() -> None:
    text = render(sample.both())
    assert _row(text, "flash2", -1)[:5] == ["flash2", "400.00", "0.345x", "132.30", "0.031x"]
    assert "comparison" not in render([sample.naive()])


@pytest.mark.parametrize("scale", [1, 1_000, 100_000])
def test_lines_stay_within_110_columns(scale: int) -> None:
    result = copy.deepcopy(sample.naive())
    result["kernels"][0]["name"] = "a_kernel_with_a_very_long_name_of_many_parts_fp16_128x128"
    result["schedule"] = {f"some_schedule_key_{i}": i for i in range(12)}
    for counters in (*result["kernels"], result["total"], *result["by_tensor"].values()):
        for key in counters:
            if key.endswith("_bytes") or key in ("dirty_bytes_left", "cycles", "time_us", "flops"):
                counters[key] *= scale
    text = render([result, result])
    assert max(map(len, text.splitlines())) <= WIDTH


def test_columns_are_aligned_to_the_right() -> None:
    lines = render([sample.naive()]).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("MB"))
    block = lines[start : start + 6]
    assert len({len(line) for line in block}) == 1


def test_unknown_rates_are_a_dash() -> None:
    result = sample.naive()
    result["kernels"][0]["l2_hit_rate"] = None
    result["analytic"]["hbm_bytes"] = 0
    text = render([result])
    assert _row(text, "scores")[5] == "–"
    assert _row(text, "simulated")[-1] == "–"
