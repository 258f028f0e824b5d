"""Do the figures carry the counters' bytes, and does Plotly accept them?"""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest

from gpusim.report.fields import BYTE_FIELDS, LEVELS
from gpusim.report.flow import HOPS, flows
from gpusim.report.html import figures_of
from gpusim.report.roofline import points
from gpusim.report.timeline import sm_fractions
from tests.gpusim.report import sample


def _plain(value: Any) -> Any:
    """Theme variables as a colour that Plotly's Python checks accept."""
    if isinstance(value, str):
        return "Arial" if value == "var(--font)" else "#123456" if value.startswith("var(") else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("figure", figures_of(sample.both()), ids=lambda figure: figure["id"])
def test_plotly_accepts_the_figure(figure: dict[str, Any]) -> None:
    go.Figure(data=_plain(figure["data"]), layout=_plain(figure["layout"]))
    json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.key)
def test_area_under_a_tensors_curve_is_its_bytes(level: Any) -> None:
    result = sample.naive()
    timeline = next(f for f in figures_of([result]) if f["id"] == "timeline-0")
    seconds = sample.BIN / sample.MACHINE["clock_hz"]
    traces = [trace for trace in timeline["data"] if trace["meta"].get("level") == level.key]
    assert [trace["name"] for trace in traces] == ["Q", "K", "V", "S", "P", "O"]
    for trace in traces:
        moved = sum(trace["y"]) * 1e9 * seconds
        assert moved == pytest.approx(result["by_tensor"][trace["name"]][level.field], rel=1e-6)


def test_ribbons_carry_each_counter_of_the_walk() -> None:
    result = sample.naive()
    for source, target, field in HOPS:
        moved = sum(flow.bytes for flow in flows(result) if (flow.source, flow.target) == (source, target))
        assert moved == result["total"][field]
    assert {field for _, _, field in HOPS} <= {field for field, _ in BYTE_FIELDS}


def test_sm_states_fill_each_bin() -> None:
    for bins in zip(*sm_fractions(sample.flash2()).values(), strict=True):
        assert sum(bins) == pytest.approx(1.0)


def test_states_that_overlap_leave_no_idle_time() -> None:
    result = sample.flash2()
    whole = sample.BIN * sample.MACHINE["sm_count"]
    result["timeline"]["tensor_busy_cycles"][5] = result["timeline"]["vector_busy_cycles"][5] = 0.8 * whole
    assert sm_fractions(result)["idle"][5] == 0.0


def test_simulated_points_are_flops_over_hbm_bytes_and_time() -> None:
    result = sample.flash2()
    total = result["total"]
    simulated = next(point for point in points(result, "flash2") if point.what == "total")
    moved = total["dram_read_bytes"] + total["dram_write_bytes"]
    assert simulated.intensity == pytest.approx(total["flops"] / moved)
    assert simulated.flops == pytest.approx(total["flops"] / 400e-6)


def test_closed_form_lies_on_its_roof() -> None:
    memory, compute = (points(result, "x")[0] for result in sample.both())
    assert memory.flops == pytest.approx(memory.intensity * 4.814e12)
    assert compute.flops == 9.4e14


def test_a_warm_result_without_hbm_bytes_has_no_hbm_point() -> None:
    result = sample.flash2()
    for counters in (result["total"], *result["kernels"], *result["by_tensor"].values()):
        counters["dram_read_bytes"] = counters["dram_write_bytes"] = 0
    roofline = next(f for f in figures_of([result]) if f["id"] == "roofline-all")
    assert [t["meta"]["what"] for t in roofline["data"] if t["meta"]["row"] == "point"] == [
        "closed form",
        "total at the L2",
    ]


def test_a_tensor_has_one_colour_everywhere() -> None:
    figures = figures_of(sample.both())
    lines = {
        (t["name"], t["fillcolor"]) for f in figures if f["kind"] == "timeline" for t in f["data"] if "fillcolor" in t
    }
    ribbons = {
        (name, colour.replace("-soft", ""))
        for f in figures
        if f["kind"] == "flow"
        for name, colour in zip(f["data"][0]["link"]["label"], f["data"][0]["link"]["color"], strict=True)
    }
    assert ribbons <= lines
    assert len({name for name, _ in lines}) == len(lines)
