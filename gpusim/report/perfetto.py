"""A result as a trace for ui.perfetto.dev or chrome://tracing (Trace Event Format, JSON object form).

`ts` and `dur` are in µs from the first kernel's clock zero. One process per result: kernels as slices, then counters:
GB/s per level and tensor, L2 hit rate (%), SM state (% of SMs).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpusim.report.fields import BYTE_FIELDS, LEVELS, STATES, Result, has_timeline, labels, microseconds, tensors_of
from gpusim.report.text import write_atomic
from gpusim.report.timeline import bandwidths, bin_edges, hit_rates, sm_fractions

__all__ = ["trace_events", "write_trace"]

Event = dict[str, Any]
_THREAD = 1


def write_trace(result: Result | Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Write one result, or several as processes side by side, to `path` (replaced all at once)."""
    results = [result] if isinstance(result, Mapping) else list(result)
    events: list[Event] = []
    for pid, (one, label) in enumerate(zip(results, labels(results), strict=True), start=1):
        events += trace_events(one, label, pid)
    trace = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"producer": "gpusim"}}
    write_atomic(json.dumps(trace, allow_nan=False, separators=(",", ":")), path)


def trace_events(result: Result, label: str, pid: int = 1) -> list[Event]:
    """All events of one result as process `pid`."""
    events: list[Event] = [
        _named("process_name", pid, {"name": f"{label} on {result['gpu']}" if " on " not in label else label}),
        _named("process_sort_index", pid, {"sort_index": pid}),
        _named("thread_name", pid, {"name": "kernels"}),
    ]
    events += _kernels(result, pid)
    if has_timeline(result):
        events += _counters(result, pid)
    return events


def _named(name: str, pid: int, args: Mapping[str, object]) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": _THREAD, "args": dict(args)}


def _kernels(result: Result, pid: int) -> Iterator[Event]:
    clock = 0.0
    shown = ("ctas", "cycles", "flops", "l2_hit_rate", "tensor_utilisation", "dram_utilisation")
    for kernel in result["kernels"]:
        start = float(kernel.get("start_cycle", clock) or 0)
        clock = start + float(kernel["cycles"] or 0)
        args = {key: kernel[key] for key in (*shown, *(key for key, _ in BYTE_FIELDS)) if _finite(kernel.get(key))}
        begin, end = microseconds(result, start), microseconds(result, clock)
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": str(kernel["name"]),
            "pid": pid,
            "tid": _THREAD,
            "ts": begin,
            "dur": end - begin,
            "args": args,
        }


def _counters(result: Result, pid: int) -> Iterator[Event]:
    edges = bin_edges(result)
    tensors = tensors_of([result])
    for level in LEVELS:
        rows = {tensor: row for tensor in tensors if (row := bandwidths(result, level.key, tensor)) is not None}
        yield from _series(f"{level.label} (GB/s)", edges, rows, pid)
    rates = {"L2": [100 * rate if rate is not None else 0.0 for rate in hit_rates(result)]}
    yield from _series("L2 hit rate (%)", edges, rates, pid)
    fractions = sm_fractions(result)
    names = {key: label for key, label, _ in STATES} | {"idle": "Idle"}
    percents = {names[key]: [100 * share for share in row] for key, row in fractions.items()}
    yield from _series("SMs (%)", edges, percents, pid)


def _series(name: str, edges: Sequence[float], rows: Mapping[str, Sequence[float]], pid: int) -> Iterator[Event]:
    """A counter event where a bin starts and its values differ from the bin before, and zeros at the end."""
    if not rows:
        return
    before: dict[str, float] = {}
    for index, start in enumerate(edges):
        last = index == len(edges) - 1
        values = {key: 0.0 if last else float(f"{row[index]:.7g}") for key, row in rows.items()}
        if values != before:
            yield {"ph": "C", "name": name, "pid": pid, "tid": _THREAD, "ts": start, "args": values}
        before = values


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
