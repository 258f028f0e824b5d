"""Are errors, held-out points and verdicts what they say; are the measured curves read in full?"""

from __future__ import annotations

import csv
import io

import pytest

from experiments.measurements import MEASURED, folder_of
from experiments.validation.curve import Curve, curve
from experiments.validation.data import measured_curves, public_curves, sm_reads
from experiments.validation.text import curve_text, summary_text, to_csv
from experiments.validation.write_study import measured_steps


def made(error: str = "relative", target: float | None = 0.1) -> Curve:
    shape = Curve("a.b", "A title", "buffer", "MiB", "bandwidth", "TB/s", error, target, ())  # type: ignore[arg-type]
    return curve(shape, {4.0: 2.0, 1.0: 1.0, 2.0: 2.0, 9.0: 5.0}, {1.0: 1.1, 2.0: 1.9, 4.0: 2.5, 7.0: 1.0})


def test_is_every_third_point_held_out_and_nothing_unmeasured_kept() -> None:
    assert [(p.x, p.held_out) for p in made().points] == [(1.0, False), (2.0, False), (4.0, True)]


def test_are_errors_relative_or_differences() -> None:
    assert made().mean_error() == pytest.approx((0.1 + 0.05 + 0.25) / 3)
    assert made().mean_error(held_out=True) == pytest.approx(0.25)
    assert made().mean_error(held_out=False) == pytest.approx(0.075)
    assert made("difference").mean_error() == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert made("difference").error_of(made().points[1]) == pytest.approx(-0.1)


def test_is_a_verdict_only_given_where_there_is_a_target() -> None:
    assert (made().met, made(target=0.2).met, made(target=None).met) == (False, True, None)


def test_does_the_text_hold_every_point_and_the_summary_count_the_targets() -> None:
    text = curve_text(made())
    assert "4 MiB" in text and "+25.0 %  held out" in text and "target 10.0 %: missed" in text
    assert "1 of 2 targets met" in summary_text([made(), made(target=0.2), made(target=None)])


def test_does_the_csv_hold_a_line_per_point() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([made(), made("difference", None)]))))
    assert len(rows) == 6
    assert (rows[2]["x"], rows[2]["held_out"], rows[2]["error"], rows[2]["target"]) == ("4", "1", "0.25", "0.1")
    assert rows[3]["error_kind"] == "difference" and rows[3]["target"] == ""


def test_are_the_numbers_of_the_notes_all_in_the_file() -> None:
    notes = (MEASURED / "h200" / "bandwidth_latency.md").read_text()
    curves = measured_curves(folder_of("h200"))
    assert {name: len(values) for name, values in curves.items()} == {
        "read_fixed": 22, "read_shifted": 22, "write": 3, "copy": 1, "sms_l2": 9, "sms_dram": 9, "threads_dram": 6,
        "latency": 13, "latency_flushed": 1,
    }  # fmt: skip
    for x, fixed in curves["read_fixed"].items():
        assert f"{x:g} {'MiB ' if x == 1 else ''}{fixed:.2f}/{curves['read_shifted'][x]:.2f}" in notes.replace(
            "\n", " "
        )
    assert curves["latency"][0.0625] == 284 and curves["sms_l2"][132] == 6.17


def test_are_the_reads_of_chosen_sms_found() -> None:
    reads = sm_reads(folder_of("h200"))
    one = next(r for r in reads if (r.which, r.sms, r.ctas_per_sm, r.depth) == ("in order", 16, 1, 4))
    assert 600 < one.bytes_per_clk < 650 and one.inflight_kib == 64
    assert {r.which for r in reads} >= {"in order", "spread", "one partition"}


def test_are_published_curves_read_by_card() -> None:
    assert set(public_curves("v100")) == {"l2_shared", "latency", "stream_read", "stream_scale"}
    a100 = public_curves("a100")
    assert set(a100) == {"l2_volume", "latency", "stream_read", "stream_scale"}
    assert a100["stream_read"].values[1024] == 1769 and a100["latency"].clock_hz == 1.41e9
    assert public_curves("rtx4090") == {}


def test_is_each_write_back_step_found_for_each_size() -> None:
    steps = measured_steps(folder_of("h200"))
    sizes = {16, 24, 28, 30, 32, 36, 40, 48, 56, 60, 64}
    assert all(set(rows) == sizes for rows in steps.values())
    assert steps["evict"][16].dram_write_bytes == 17545216 and steps["write"][64].dram_write_bytes == 37892096
