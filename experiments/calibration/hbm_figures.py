"""Figures of the memory: latency, what share of its peak reads and writes reach, and how it is refreshed."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.calibration.device_figures import memory_standard
from experiments.calibration.figure import Figure, estimate, measured, significant
from experiments.calibration.folder import Measurements
from experiments.calibration.refresh import Refresh, refresh_of
from gpusim.spec.standards import load_standard
from gpusim.spec.units import parse_time_ns
from kernels_cupy.microbench.memory_latency import BIN_CYCLES

__all__ = ["hbm_figures"]

STREAMS, WAITS = "streams.csv", "memory_latency.csv"
LARGE_L2S = 8
"""Buffers of so many L2s are read from memory, pass after pass."""


def hbm_figures(m: Measurements) -> Iterator[Figure]:
    """All of them that the folder has measurements of."""
    flushed = m.curves.get("latency_flushed", {})
    refresh = _refresh(m)
    if flushed:
        how, waits = "random chase after other data filled the L2, SM cycles", 0.0
        if refresh:
            waits = refresh.mean_wait_cycles
            how += f", less {waits:.0f} that reads wait for refresh on average"
        yield measured("hbm.latency", significant(min(flushed.values()) - waits, 3), how, "latency.csv")
    d = m.device
    peak = 2 * d.memory_clock_hz * d.memory_bus_bits / 8
    if not peak:
        return
    large = _large(m)
    if large:
        best = max(large)
        yield from _reads(m, refresh, best * 1e12 / peak, best)
    written = m.curves.get("write", {})
    if written:
        rate = written[max(written)]
        how = f"a long write reaches {rate:.3g} TB/s of {peak / 1e12:.4g}"
        yield measured("hbm.write_efficiency", significant(min(1.0, rate * 1e12 / peak), 3), how, STREAMS)


def _large(m: Measurements) -> list[float]:
    """Rates of reads of buffers that do not fit, TB/s."""
    least = LARGE_L2S * m.device.l2_bytes / (1 << 20)
    rates = [rate for mib, rate in m.curves.get("read_fixed", {}).items() if mib > least]
    return rates + [rate for curve in ("sms_dram", "threads_dram") for rate in m.curves.get(curve, {}).values()]


def _refresh(m: Measurements) -> Refresh | None:
    """What the waits of single reads say of it."""
    reads = {float(row["cycles"]): float(row["reads"]) for row in m.rows(WAITS)}
    return refresh_of(reads, BIN_CYCLES) if reads else None


def _reads(m: Measurements, refresh: Refresh | None, share: float, rate: float) -> Iterator[Figure]:
    """Efficiency, beside what refresh of all banks takes where the reads leave room for it."""
    values = load_standard(memory_standard(m.device.memory_bus_bits, m.device.memory_clock_hz)).values
    all_banks = 1 - parse_time_ns(values["hbm.timing.rfc_ab"]) / parse_time_ns(values["hbm.timing.refi"])
    reached = f"reads reach {rate:.3g} TB/s, {share:.1%} of peak"
    if share > all_banks:
        yield estimate("hbm.refresh", "per_bank", f"{reached}; refresh of all banks would leave {all_banks:.1%}")
        yield measured("hbm.read_efficiency", significant(min(1.0, share), 3), reached, STREAMS)
        if refresh and m.device.sm_clock_hz:
            ns = 1e9 / m.device.sm_clock_hz
            how = f"{refresh.share:.1%} of single reads wait, for up to {refresh.cycles:.0f} SM cycles"
            yield measured("hbm.timing.rfc_pb", f"{significant(refresh.cycles * ns, 3)}ns", how, WAITS)
            yield measured("hbm.timing.refi", f"{significant(refresh.interval_cycles * ns, 4)}ns", how, WAITS)
    else:
        yield estimate("hbm.refresh", "all_bank", f"{reached}, which refresh of all banks ({all_banks:.1%}) allows")
        how = f"{reached}, beside refresh"
        yield measured("hbm.read_efficiency", significant(min(1.0, share / all_banks), 3), how, STREAMS)
