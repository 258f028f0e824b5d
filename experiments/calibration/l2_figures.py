"""Figures of the L2: partitions, slices, clock, latency, additions, and how much dirty data it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from experiments.calibration.device_figures import WIDE_BUS_BITS
from experiments.calibration.figure import Figure, estimate, measured, significant
from experiments.calibration.folder import Measurements
from experiments.calibration.noc_figures import PARTITIONS, partitions
from gpusim.spec import GpuSpec

__all__ = ["l2_figures"]

WRITEBACK, UNITS = "l2_writeback_and_merging.csv", "units.csv"
MIB = 1 << 20
BITS_PER_SLICE = 64
"""Bits of the memory bus per L2 slice: V100 excepted, so on every HBM card whose slices are known."""
EXPLAINED = 0.99
"""Share of addresses whose home the parity of address bits must tell."""
OVERFLOW = 0.1
"""Written buffers of which this share is already in memory are past the cap."""


def l2_figures(m: Measurements, base: GpuSpec) -> Iterator[Figure]:
    """All of them that the folder has measurements of; `base` has the L2's clock where it was not counted."""
    yield from _partitions(m)
    slices = _slices(m)
    if slices is not None:
        yield slices
    if "lts_clock_hz" in m.units:
        clock = f"{significant(m.units['lts_clock_hz'] / 1e6)}MHz"
        yield measured("l2.clock", clock, "L2 clock in Nsight Compute while a buffer streams", UNITS)
    latency = m.curves.get("latency", {})
    if latency:
        how = f"random chase in {min(latency) * 1024:.0f} KiB, SM cycles"
        yield measured("l2.latency", significant(latency[min(latency)], 3), how, "latency.csv")
    yield from _additions(m, slices, base)
    yield from _dirty_cap(m)


def _partitions(m: Measurements) -> Iterator[Figure]:
    found, count = m.json(PARTITIONS), partitions(m)
    if found is None or not count:
        return
    latency = found["atomic_latency_cycles"]
    how = f"latency of atomics from each SM to each line: {latency['near']:.0f} cycles near, {latency['far']:.0f} far"
    yield measured("l2.partitions", count, how, PARTITIONS)
    of_sm = found["partition_of_sm"] if count == 2 else [0] * m.device.sm_count
    yield measured("sm.partition_of_sm", of_sm, how, PARTITIONS)
    if count == 2 and found["home_address_bits"] and found["addresses_explained"] >= EXPLAINED:
        how = f"their parity tells the home of {found['addresses_explained']:.1%} of the lines within a page"
        yield measured("l2.home_bits", found["home_address_bits"], how, PARTITIONS)


def _slices(m: Measurements) -> Figure | None:
    if "l2_slices" in m.units:
        return measured("l2.slices", int(m.units["l2_slices"]), "L2 slices counted by Nsight Compute", UNITS)
    bits = m.device.memory_bus_bits
    if bits < WIDE_BUS_BITS:
        return None
    why = f"without counters, one for each {BITS_PER_SLICE} of the bus's {bits} bits, as on other cards with HBM"
    return estimate("l2.slices", bits // BITS_PER_SLICE, why)


def _additions(m: Measurements, slices: Figure | None, base: GpuSpec) -> Iterator[Figure]:
    rows = m.rows("reductions.csv")
    if not rows or slices is None:
        return
    rate = max(float(row["tb_per_s"]) for row in rows) * 1e12
    clock = m.units.get("lts_clock_hz", base.l2.clock_hz)
    how = f"all SMs add fp32 numbers at {rate / 1e12:.3g} TB/s, over {slices.value} slices at {clock / 1e9:.4g} GHz"
    value = f"{significant(rate / slices.value / clock, 3)}B/clk"
    if "lts_clock_hz" in m.units:
        yield measured("l2.reduce_bandwidth", value, how, "reductions.csv")
    else:
        yield estimate("l2.reduce_bandwidth", value, f"{how}, as in {base.name} (reductions.csv)")


def _dirty_cap(m: Measurements) -> Iterator[Figure]:
    """Size less what was in memory already, for written buffers that are clearly too large to stay dirty."""
    kept = [
        mib - step.dram_write_bytes / MIB
        for mib, step in m.written["write"].items()
        if step.dram_write_bytes > OVERFLOW * mib * MIB
    ]
    if kept:
        cap = round(2 * median(kept)) / 2
        how = f"of {len(kept)} larger buffers all but {min(kept):.1f} to {max(kept):.1f} MiB were written back at once"
        yield measured("l2.dirty_cap", f"{significant(cap)}MiB", how, WRITEBACK)
