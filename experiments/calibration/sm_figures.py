"""Figures of the SMs: ports, latencies, where CTAs go and when they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from experiments.calibration.figure import Figure, estimate, measured, significant
from experiments.calibration.folder import Measurements
from kernels_cupy.microbench.launch_counters import BUSY_CYCLES, THREADS

__all__ = ["sm_figures"]

STARTS, LATENCY, STREAMS, SM_BANDWIDTH, GPCS = (
    "cta_starts.json",
    "latency.csv",
    "streams.csv",
    "sm_bandwidth.csv",
    "gpcs.json",
)
LAUNCHES = "launch_counters.csv"
FEW_THREADS = min(THREADS)
TIMER_TICK_NS = 32
"""The GPU's nanosecond timer moves in steps of this."""
LOST_BETWEEN_CHUNKS = 1.2
"""A program waits for all it has in flight, so more is in flight at best than bandwidth x latency says (H200: 1.2)."""
INFLIGHT_STEP_BYTES = 8 << 10
FULL_CTAS = {
    "full_ctas_of_32_threads_in_8_waves": 1,
    "full_ctas_in_8_waves": 12,
    "full_ctas_of_1024_threads_in_8_waves": 32,
}
"""Launches of CTAs that fill an SM → their warps."""


def sm_figures(m: Measurements) -> Iterator[Figure]:
    """All of them that the folder has measurements of."""
    yield from ports(m)
    yield from latencies(m)
    yield from placement(m)
    yield from starts(m)
    yield from kernel_overhead(m)


def ports(m: Measurements) -> Iterator[Figure]:
    """What one SM alone reads from and writes to the L2 per cycle, and how much it has in flight."""
    alone = [read.bytes_per_clk for read in m.sm_reads if read.which == "in order" and read.sms == 1]
    if alone:
        how = "one SM alone reads that from the L2, the best of CTAs, threads and loads in flight"
        yield measured("sm.read_port", f"{significant(max(alone), 3)}B/clk", how, SM_BANDWIDTH)
    writes = m.curves.get("sm_write_l2", {})
    if writes:
        yield measured(
            "sm.write_port",
            f"{significant(max(writes.values()), 3)}B/clk",
            "one SM alone writes that to the L2",
            STREAMS,
        )
    dram, flushed = m.curves.get("sms_dram", {}), m.curves.get("latency_flushed", {})
    if 1 in dram and flushed and m.device.sm_clock_hz:
        latency = min(flushed.values())
        inflight = dram[1] * 1e12 / m.device.sm_clock_hz * latency
        steps = max(1, round(LOST_BETWEEN_CHUNKS * inflight / INFLIGHT_STEP_BYTES))
        yield estimate(
            "sm.max_inflight",
            f"{steps * INFLIGHT_STEP_BYTES >> 10}KiB",
            f"one SM reads {dram[1]:.3g} TB/s from DRAM at {latency:.0f} cycles, {inflight / 1024:.0f} KiB, and a "
            "fifth more is lost between chunks (streams.csv, latency.csv)",
        )


def latencies(m: Measurements) -> Iterator[Figure]:
    """Shared memory and L1."""
    for curve, key, what in (
        ("latency_shared", "sm.shared_latency", "chase in shared memory, SM cycles"),
        ("latency_l1", "l1.latency", "chase in 16 KiB through the L1, SM cycles"),
    ):
        values = m.curves.get(curve, {})
        if values:
            yield measured(key, significant(min(values.values()), 3), what, LATENCY)


def placement(m: Measurements) -> Iterator[Figure]:
    """CTA order, GPCs and partitions."""
    started = m.json(STARTS)
    if started is not None:
        order = started["one_small_cta_per_sm"]["last_run"]["sm"]
        if sorted(order) == list(range(m.device.sm_count)):
            yield measured("sm.cta_order", order, "%smid of the CTAs of a launch of one per SM", STARTS)
            yield from _filled_first(m, order)
    gpcs = m.json(GPCS)
    if gpcs is not None and min(gpcs["gpc_of_sm"]) >= 0:
        how = "SMs that slow each other down when they stream from the L2"
        yield measured("sm.gpcs", max(gpcs["gpc_of_sm"]) + 1, how, GPCS)
        yield measured("sm.gpc_of_sm", gpcs["gpc_of_sm"], how, GPCS)
    elif "gpcs" in m.units:
        yield measured("sm.gpcs", int(m.units["gpcs"]), "GPCs counted by Nsight Compute", "units.csv")


def _filled_first(m: Measurements, order: Sequence[int]) -> Iterator[Figure]:
    """The largest small grid whose CTAs are on just the first SMs of the CTA order."""
    grids = [{int(sm) for sm in row["sm_of_cta"].split()} for row in m.rows(SM_BANDWIDTH) if row.get("sm_of_cta")]
    small = [sms for sms in grids if 1 < len(sms) < m.device.sm_count]
    if small:
        filled = max((len(sms) for sms in small if sms == set(order[: len(sms)])), default=0)
        listed = ", ".join(str(len(sms)) for sms in sorted(small, key=len))
        how = f"of grids of {listed} CTAs the largest that is on the first SMs of the CTA order, if any is"
        yield measured("sm.filled_first", filled, how, SM_BANDWIDTH)


def starts(m: Measurements) -> Iterator[Figure]:
    """Launch interval, stagger of TPCs and turnover of CTAs, in cycles of the highest clock."""
    started = m.json(STARTS)
    ghz = m.device.sm_clock_hz / 1e9
    if started is None or not ghz:
        return
    full = started["one_full_cta_per_sm"]
    last, lag = median(full["last_start_ns"]), full["tpc_lag_ns"]
    if not m.rows(LAUNCHES):
        spread = max(0.0, last - max(0.0, lag) - TIMER_TICK_NS)
        yield estimate(
            "sm.cta_launch_interval",
            significant(spread * ghz / m.device.sm_count, 2),
            f"the last of {m.device.sm_count} full-SM CTAs starts {last:.0f} ns after the first, of which {lag:.0f} ns "
            f"are the stagger of TPCs and {TIMER_TICK_NS} ns the timer's tick ({STARTS})",
        )
    how = f"the second SM of a TPC starts {lag:.1f} ns after the first"
    yield measured("sm.tpc_stagger", significant(max(0.0, lag) * ghz, 3), how, STARTS)
    turnover = {warps: started[name]["turnover_ns"] for name, warps in FULL_CTAS.items() if name in started}
    if len(turnover) > 1:
        per_warp, first = np.polyfit(list(turnover), list(turnover.values()), 1)
        how = f"from a CTA's end to its successor's start: {first:.0f} ns and {per_warp:.1f} ns per warp"
        yield measured("sm.cta_turnover", significant(max(0.0, first) * ghz, 3), how, STARTS)
        yield measured("sm.warp_launch", significant(max(0.0, per_warp) * ghz, 2), "as cta_turnover", STARTS)


def kernel_overhead(m: Measurements) -> Iterator[Figure]:
    """Cycles of a launch beside those of its CTAs (by events alone an estimate), and of each CTA of many."""
    launch = m.json("launch.json")
    taken: dict[tuple[str, int], list[float]] = {}
    for row in m.rows(LAUNCHES):
        if int(row["threads"]) == FEW_THREADS:
            taken.setdefault((row["kernel"], int(row["ctas"])), []).append(float(row["sm_cycles_elapsed"]))
    if taken:
        idle = median(taken["busy", 1]) - BUSY_CYCLES
        how = f"one CTA that is busy for {BUSY_CYCLES} cycles takes that longer"
        yield measured("sm.kernel_overhead", significant(idle, 3), how, LAUNCHES)
        *_, fewer, most = sorted(ctas for name, ctas in taken if name == "empty")
        longer = median(taken["empty", most]) - median(taken["empty", fewer])
        how = f"{most - fewer} more CTAs that do nothing take {longer:.0f} cycles"
        yield measured("sm.cta_launch_interval", significant(longer / (most - fewer), 2), how, LAUNCHES)
    elif launch:
        cycles = launch["overhead_us"] * launch["sm_clock_ghz"] * 1e3
        why = "without counters, time of queued launches less the cycles of their CTAs (launch.json)"
        yield estimate("sm.kernel_overhead", significant(cycles, 2), why)
