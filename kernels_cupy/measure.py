"""One measurement: an algorithm's kernels run on this GPU, checked, timed and counted.

Plain data, with the field names of simulated results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels_cupy import counters, verify
from kernels_cupy.arrays import random_inputs
from kernels_cupy.cta_record import Recorded
from kernels_cupy.provenance import provenance
from kernels_cupy.run import Session
from traces.cta_times import CtaTimes
from traces.launch import Plan


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of one plan.

    Attributes:
        gpu: the card's own name.
        plan: what ran.
        l2: state of the L2 before every run.
        repeat: timed runs.
        kernels: a dictionary per launch: `name`, `ctas`, `time_us` (median, CUDA events), `registers`; with counters
            those of `kernels_cupy.counters` (whose duration is `ncu_time_us`); where CTAs were recorded `cta_times`, as
            `_summary` says.
        total: the same over the whole run; `flops` are those of the unmasked pairs.
        errors: output → relative error against float64, when verified.
        provenance: card, driver, clocks, command, date, hash of the sources.
        recorded: a run more, in which CTAs were recorded, if that was asked for.
    """

    gpu: str
    plan: Plan
    l2: str
    repeat: int
    kernels: list[dict[str, Any]]
    total: dict[str, Any]
    errors: dict[str, float] | None
    provenance: dict[str, str] = field(default_factory=dict)
    recorded: Recorded | None = None

    @property
    def verified(self) -> bool:
        """Whether every output is within `verify.tolerance` (NaN never is)."""
        return self.errors is not None and all(e <= verify.tolerance(self.plan) for e in self.errors.values())

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what a simulation's has, as far as it can be measured, and `errors` and `provenance`."""
        return {
            "gpu": self.gpu,
            "algorithm": self.plan.algorithm,
            "problem": self.plan.problem.to_dict(),
            "schedule": self.plan.schedule.to_dict(),
            "l2": self.l2,
            "repeat": self.repeat,
            "kernels": self.kernels,
            "total": self.total,
            "errors": self.errors,
            "provenance": self.provenance,
        }


def measure(
    plan: Plan,
    *,
    l2: str = "cold",
    repeat: int = 20,
    check: bool = False,
    count: bool = False,
    record: str = "",
    seed: int = 0,
) -> Measurement:
    """Run `plan` on this GPU.

    Args:
        l2: state of the L2 before every run, one of `run.L2_STATES`.
        check: compare the outputs with float64.
        count: read hardware counters with Nsight Compute.
        record: record the `ctas` of one run more (SM, start and end of each), or their `stamps` too.
        seed: of the random inputs.

    Raises:
        ValueError: the kernels do not support the plan.
        Unavailable: the machine lacks what this needs.
    """
    inputs = verify.consistent_inputs(plan, seed) if check else random_inputs(plan, seed)
    session = Session(plan, inputs)
    session.launch()
    errors = verify.errors(session, inputs) if check else None
    times = session.time(repeat, l2)
    kernels = [
        {"name": spec.name, "ctas": spec.ctas, "time_us": us, "registers": compiled.reports[spec.entry].registers}
        for spec, us, compiled in zip(session.specs, times.kernel_medians_us, session.compiled, strict=True)
    ]
    flops = plan.problem.flops(plan.work)
    total = {"name": "total", "ctas": sum(s.ctas for s in session.specs), "time_us": times.median_us, "flops": flops}
    gpu, sources = session.gpu, {spec.source for spec in session.specs}
    del session  # what comes now needs the memory
    recorded = None
    if record:
        _free_memory()
        recorded = Session(plan, inputs, record).record(l2)
        kernels = [
            kernel | {"cta_times": _summary(times, registers, gpu.sm_count)}
            for kernel, times, registers in zip(kernels, recorded.launches, recorded.registers, strict=True)
        ]
    if count:
        _free_memory()
        counted = counters.measure_counters(plan, l2, seed)
        total = _with_counters(total, counters.total(counted))
        kernels = [_with_counters(ours, theirs) for ours, theirs in zip(kernels, counted, strict=True)]
    facts = provenance(*sorted(sources))
    return Measurement(gpu.name, plan, l2, repeat, kernels, total, errors, facts, recorded)


def _summary(times: CtaTimes, registers: int, sm_count: int) -> dict[str, Any]:
    """CTAs per SM, the most at a time, how far apart the first of each place started, how long they ran."""
    per_sm = times.ctas_per_sm(sm_count)
    return {
        "per_sm_min": int(per_sm.min()),
        "per_sm_max": int(per_sm.max()),
        "resident": times.resident,
        "first_starts_ns": float(np.ptp(times.start_ns[times.first_wave])),
        "duration_median_cycles": float(np.median(times.duration_cycles)),
        "duration_max_cycles": float(times.duration_cycles.max()),
        "registers": registers,
    }


def _with_counters(timed: dict[str, Any], counted: dict[str, float]) -> dict[str, Any]:
    renamed = {("ncu_time_us" if k == "time_us" else k): v for k, v in counted.items() if k != "name"}
    return timed | renamed


def _free_memory() -> None:
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


_COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    ("CTAs", "ctas", 1, 0),
    ("time µs", "time_us", 1, 2),
    ("cycles", "cycles", 1, 0),
    ("DRAM read MB", "dram_read_bytes", 1e6, 2),
    ("write", "dram_write_bytes", 1e6, 2),
    ("L2 read MB", "l2_read_bytes", 1e6, 2),
    ("write", "l2_write_bytes", 1e6, 2),
    ("hit %", "l2_hit_rate", 0.01, 1),
    ("fabric MB", "fabric_bytes", 1e6, 2),
    ("SM read MB", "sm_read_bytes", 1e6, 2),
    ("write", "sm_write_bytes", 1e6, 2),
)
"""Heading, field, unit and decimals; columns that were not measured are left out."""


def render(measurement: Measurement) -> str:
    """The measurement as a table of text, a row per kernel and the total."""
    total, tolerance = measurement.total, verify.tolerance(measurement.plan)
    columns = [c for c in _COLUMNS if c[1] in total]
    rows = [["kernel", *(heading for heading, *_ in columns)]]
    for kernel in (*measurement.kernels, total):
        rows.append([kernel["name"], *(f"{kernel[f] / unit:,.{places}f}" for _, f, unit, places in columns)])
    p = measurement.plan.problem
    lines = [
        f"{measurement.plan.algorithm} on {measurement.gpu}: B{p.batch} H{p.heads} Hkv{p.kv_heads} N{p.seq} "
        f"M{p.seq_kv} d{p.dim} {p.dtype}{' causal' if p.causal else ''}, L2 {measurement.l2}, "
        f"median of {measurement.repeat}",
        *_aligned(rows),
        f"{total['flops'] / total['time_us'] / 1e6:,.1f} TFLOP/s over unmasked pairs",
    ]
    if measurement.recorded:
        lines += ["", *_recorded_lines(measurement.kernels, measurement.recorded.time_us / total["time_us"])]
    for name, error in (measurement.errors or {}).items():
        verdict = "passes" if error <= tolerance else "FAILS"
        lines.append(f"{name}: relative error {error:.2e} against float64, {verdict} (limit {tolerance:.2e})")
    return "\n".join(lines) + "\n"


def _recorded_lines(kernels: Sequence[dict[str, Any]], slowdown: float) -> list[str]:
    """What is known of the CTAs, a row per kernel; registers of the recorded build where they are not those timed."""
    rows = [["CTAs", "per SM", "at a time", "first starts within ns", "median cycles", "longest", "registers"]]
    for kernel in kernels:
        c = kernel["cta_times"]
        rows.append(
            [
                kernel["name"],
                f"{c['per_sm_min']}" if c["per_sm_min"] == c["per_sm_max"] else f"{c['per_sm_min']}-{c['per_sm_max']}",
                f"{c['resident']}",
                *(f"{c[name]:,.0f}" for name in ("first_starts_ns", "duration_median_cycles", "duration_max_cycles")),
                f"{c['registers']}" + (f" ({kernel['registers']})" if c["registers"] != kernel["registers"] else ""),
            ]
        )
    return [*_aligned(rows), f"The run that recorded them took {slowdown:.3f} times the median."]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
