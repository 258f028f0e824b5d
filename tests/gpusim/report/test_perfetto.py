"""Is the trace what the Trace Event Format asks for, and does it carry the counters' bytes?"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import pytest

from gpusim.report.perfetto import trace_events, write_trace
from tests.gpusim.report import sample


def _trace(path: pathlib.Path) -> dict[str, Any]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_every_event_has_the_fields_of_its_phase(tmp_path: pathlib.Path) -> None:
    write_trace(sample.both(), tmp_path / "trace.json")
    events = _trace(tmp_path / "trace.json")["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values())


def test_kernels_are_slices_in_microseconds() -> None:
    slices = [event for event in trace_events(sample.naive(), "naive") if event["ph"] == "X"]
    assert [s["name"] for s in slices] == ["scores", "softmax", "output"]
    assert slices[1]["ts"] == pytest.approx(540_000 / 1755)
    assert slices[1]["dur"] == pytest.approx(935_000 / 1755)


def test_counter_area_is_the_bytes_moved() -> None:
    result = sample.flash2()
    events = [e for e in trace_events(result, "flash2") if e["name"] == "L2 read (GB/s)"]
    area = 0.0
    for event, after in itertools.pairwise(events):
        area += event["args"]["K"] * 1e9 * (after["ts"] - event["ts"]) * 1e-6
    assert area == pytest.approx(result["by_tensor"]["K"]["l2_read_bytes"], rel=1e-5)
    assert set(events[-1]["args"].values()) == {0.0}


def test_counters_of_one_track_come_in_time_order() -> None:
    events = trace_events(sample.naive(), "naive")
    for name in {e["name"] for e in events if e["ph"] == "C"}:
        times = [e["ts"] for e in events if e["name"] == name]
        assert times == sorted(times)


def test_several_results_are_processes_side_by_side(tmp_path: pathlib.Path) -> None:
    write_trace(sample.both(), tmp_path / "trace.json")
    events = _trace(tmp_path / "trace.json")["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "naive on H200", 2: "flash2 on H200"}


def test_a_result_without_timeline_still_shows_its_kernels(tmp_path: pathlib.Path) -> None:
    result = sample.naive()
    del result["timeline"]
    write_trace(result, tmp_path / "trace.json")
    assert {e["ph"] for e in _trace(tmp_path / "trace.json")["traceEvents"]} == {"M", "X"}
