"""Latency against working set, and bandwidth by SMs, threads, and of copying and writing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.micro import scaling
from experiments.micro.chase import SAMPLE, chase
from experiments.micro.pattern import MIB
from experiments.validation.curve import Curve, curve
from experiments.validation.data import SmRead, measured_curves, sm_reads
from experiments.validation.study import Advance, Study, run, seconds, stepped
from gpusim.spec import GpuSpec

__all__ = ["simulate_sms", "speed_studies"]

ROUNDS = 16
"""Times that a chase goes round a buffer of few lines."""
STREAM_MIB = 384
"""Copies and writes of 1 GiB are simulated with this much, and a launch before that fills the L2 with dirty data."""


def _latency(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    measured = measured_curves(folder).get("latency", {})
    simulated = {}
    for mib in stepped(sorted(measured), advance):
        size = int(mib * MIB)
        loads = min(ROUNDS * size // 128, 4 * SAMPLE if mib <= 1 else SAMPLE)
        kernel = run(chase(size, loads, 2 * gpu.sm.count), gpu)[-1]
        simulated[mib] = (kernel.cycles - gpu.sm.kernel_overhead_cycles) / loads
    shape = Curve(
        "latency", "Latency of one thread's random loads", "buffer", "MiB", "latency", "cycles", "relative", 0.1, ()
    )
    return [curve(_log(shape), measured, simulated)]


def simulate_sms(folder: Path, chosen: Collection[float], gpu: GpuSpec, advance: Advance) -> list[Curve]:
    """Bandwidth from DRAM by SMs and threads; of the former only at `chosen` numbers of SMs, if there are any."""
    measured = {name: measured_curves(folder).get(name, {}) for name in ("sms_dram", "threads_dram")}
    simulated: dict[str, dict[float, float]] = {name: {} for name in measured}
    places = [("sms_dram", x) for x in measured["sms_dram"] if x <= gpu.sm.count and (not chosen or x in chosen)]
    places += [("threads_dram", x) for x in measured["threads_dram"] if not chosen]
    for name, x in stepped(places, advance):
        pattern = scaling.from_dram(int(x)) if name == "sms_dram" else scaling.from_dram(gpu.sm.count, int(x))
        kernel = run(pattern, gpu)[-1]
        simulated[name][x] = kernel.sm_read_bytes / seconds(kernel, gpu) / 1e12
    shapes = (
        Curve("sms_dram", "Read bandwidth from DRAM by SMs", "SMs", "", "bandwidth", "TB/s", "relative", 0.15, ()),
        Curve(
            "threads_dram",
            "Read bandwidth from DRAM by threads per SM",
            "threads per SM",
            "",
            "bandwidth",
            "TB/s",
            "relative",
            0.1,
            (),
            note="Four accesses of 16 B per thread in flight.",
        ),
    )
    return [curve(_log(shape, True), measured[shape.name], simulated[shape.name]) for shape in shapes]


_L2_SHAPES = {
    "sms_l2": ("Read bandwidth from the L2 by SMs, GPC after GPC", "SMs", ""),
    "sms_l2_spread": ("Read bandwidth from the L2 by SMs, spread over GPCs", "SMs", ""),
    "loads_l2": ("Read bandwidth from the L2 by data in flight, all SMs", "in flight per SM", "KiB"),
}


def _l2_places(folder: Path) -> dict[str, dict[float, SmRead]]:
    """Curve → x → the measured launch; in the largest sets one SM was left to measure latency."""
    reads = sm_reads(folder)
    most = max((read.sms for read in reads if read.which == "in order"), default=0)
    found: dict[str, dict[float, SmRead]] = {name: {} for name in _L2_SHAPES}
    for read in reads:
        usual = (read.ctas_per_sm, read.threads, read.depth) == (1, 1024, scaling.DEPTH)
        if read.which == "spread" and usual:
            found["sms_l2_spread"][read.sms] = read
        elif read.which == "in order" and usual:
            found["sms_l2"][read.sms] = read
        if read.which == "in order" and read.sms == most:
            found["loads_l2"].setdefault(read.inflight_kib, read)
    return found


def _l2(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    places = _l2_places(folder)
    simulated: dict[str, dict[float, float]] = {name: {} for name in places}
    for name, x in stepped([(name, x) for name, reads in places.items() for x in reads], advance):
        read = places[name][x]
        reading: Sequence[int] = range(read.sms * read.ctas_per_sm)
        if name == "sms_l2_spread":
            reading = scaling.spread(read.sms, [gpu.sm.gpc_of_sm[sm] for sm in gpu.sm.cta_order])
        grid = gpu.sm.count * read.ctas_per_sm
        kernel = run(scaling.from_l2(reading, grid, read.threads, read.depth), gpu)[-1]
        simulated[name][x] = kernel.sm_read_bytes / (kernel.cycles - gpu.sm.kernel_overhead_cycles)
    shapes = [
        Curve(name, title, x_name, x_unit, "bandwidth", "B/clk", "relative", 0.15, ())
        for name, (title, x_name, x_unit) in _L2_SHAPES.items()
    ]
    return [
        curve(_log(shape, True), {x: r.bytes_per_clk for x, r in places[shape.name].items()}, simulated[shape.name])
        for shape in shapes
    ]


def _streams(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    measured = measured_curves(folder)
    patterns = {"copy": scaling.copy, "write": scaling.write}
    patterns = {name: pattern for name, pattern in patterns.items() if name in measured}
    curves = []
    for name in stepped(patterns, advance):
        kernel = run(patterns[name](STREAM_MIB, 2 * gpu.sm.count), gpu)[-1]
        moved = kernel.sm_read_bytes + kernel.sm_write_bytes
        large = max(measured[name])
        shape = Curve(
            name,
            f"Bandwidth of a long {name}",
            "buffer",
            "MiB",
            "bandwidth",
            "TB/s",
            "relative",
            0.1,
            (),
            note=f"Simulated with {STREAM_MIB} MiB and an L2 full of dirty data."
            + (
                " Measured writes of 64 and 128 MiB (2.6 and 2.4 TB/s) are left out: the profiled runs of the same"
                " kernel take 16.5 and 31.4 µs, 4.1 and 4.3 TB/s."
                if name == "write"
                else ""
            ),
        )
        curves.append(curve(shape, {large: measured[name][large]}, {large: moved / seconds(kernel, gpu) / 1e12}))
    return curves


def _log(shape: Curve, both: bool = False) -> Curve:
    return replace(shape, log_x=True, log_y=both)


def speed_studies(folder: Path) -> list[Study]:
    """Latency, reads from the L2, reads from DRAM, and streams of copies and writes."""
    return [
        Study(("latency",), partial(_latency, folder)),
        Study(tuple(_L2_SHAPES), partial(_l2, folder)),
        Study(("sms_dram", "threads_dram"), partial(simulate_sms, folder, ())),
        Study(("copy", "write"), partial(_streams, folder)),
    ]
