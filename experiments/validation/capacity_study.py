"""L2 capacity: share of reads that go to DRAM, hit rate, fabric traffic and bandwidth, size after size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.measurements import CapacityRead, capacity_reads
from experiments.micro import capacity
from experiments.micro.pattern import MIB
from experiments.validation.curve import Curve, curve
from experiments.validation.data import measured_curves
from experiments.validation.study import Advance, Study, by_name, run, seconds, stepped
from gpusim.result import KernelResult
from gpusim.spec import GpuSpec

__all__ = ["PATTERNS", "read_all_study", "read_sizes", "reads_study", "simulate_reads"]

PATTERNS = {"read_fixed": "each byte read by one SM", "read_shifted": "readers move from pass to pass"}
WRITES = ("write_first", "write_again")
LEAST_FABRIC = 0.02
"""Fabric traffic is judged where it is this share of the reads at least: below, other traffic of the card shows."""
MOST_BYTES = 512 * MIB
"""Buffers too large for the L2 are read in fewer passes, about this much in all: their passes are all alike."""
LARGE_MIB = 128

Kernels = Mapping[float, KernelResult]
Rows = Mapping[float, CapacityRead]


def _passes(mib: float) -> int:
    return capacity.PASSES if mib <= LARGE_MIB else max(1, MOST_BYTES // (int(mib) * MIB))


def simulate_reads(folder: Path, chosen: Collection[float], gpu: GpuSpec, advance: Advance) -> list[Curve]:
    """The curves of reads and writes at the sizes `chosen` (MiB; none: at all that `folder` has).

    Sizes that were written too are one sequence of launches, as on the card; the others were timed alone.
    """
    timed = measured_curves(folder)
    rows = {name: _rows(folder, name) for name in (*PATTERNS, *WRITES)}
    sizes = sorted(x for x in read_sizes(folder) if not chosen or x in chosen)
    written = [x for x in sizes if x in rows["write_first"]]
    alone = [x for x in sizes if x not in rows["write_first"]]
    ctas = 2 * gpu.sm.count
    patterns = [capacity.reads(int(mib), _passes(mib), ctas) for mib in alone]
    if written:
        patterns.append(capacity.reads_and_writes([int(mib) for mib in written], ctas))
    found: dict[str, KernelResult] = {}
    for pattern in stepped(patterns, advance):
        found |= by_name(run(pattern, gpu))
    kernels = {name: {x: found[key] for x in sizes if (key := f"{name} {x:.0f} MiB") in found} for name in rows}
    curves = []
    for name, what in PATTERNS.items():
        curves += _counted(name, what, rows[name], kernels[name])
        curves += _bandwidth(name, what, rows[name], kernels[name], timed.get(name, {}), gpu)
    return curves + [_written(name, rows[name], kernels[name]) for name in WRITES]


def read_sizes(folder: Path) -> list[float]:
    """Sizes that were read with fixed readers, MiB, counted or timed."""
    counted = {row.mib for row in capacity_reads(folder) if row.pattern == "read_fixed"}
    return sorted(counted | set(measured_curves(folder).get("read_fixed", ())))


def _read_all(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    rows = _rows(folder, "read_all")
    ctas = 2 * gpu.sm.count
    kernels = {mib: run(capacity.read_all(int(mib), ctas), gpu)[-1] for mib in stepped(sorted(rows), advance)}
    what = "every CTA reads everything"
    delivered = {x: ctas * x * MIB for x in rows}
    shape = _shape("read_all.bandwidth", f"Bytes delivered to the SMs, {what}", "bandwidth", "TB/s", 0.1)
    return [
        *_counted("read_all", what, rows, kernels),
        curve(
            replace(shape, error="relative"),
            {x: delivered[x] / row.time_us / 1e6 for x, row in rows.items()},
            {x: delivered[x] / kernel.time_us / 1e6 for x, kernel in kernels.items()},
        ),
    ]


def _counted(name: str, what: str, rows: Rows, kernels: Kernels) -> list[Curve]:
    """What the counters say: shares of the bytes that the SMs asked of the L2."""
    fabric = {x: r.fabric_bytes / r.l2_read_bytes for x, r in rows.items()}
    return [
        curve(
            _shape(f"{name}.dram_share", f"DRAM reads, {what}", "share of L2 reads", "", 0.05),
            {x: r.dram_read_bytes / r.l2_read_bytes for x, r in rows.items()},
            {x: k.dram_read_bytes / k.l2_read_bytes for x, k in kernels.items()},
        ),
        curve(
            _shape(f"{name}.hit_rate", f"L2 hit rate, {what}", "hit rate", "", 0.05),
            {x: r.l2_hit_rate for x, r in rows.items()},
            {x: k.l2_hit_rate for x, k in kernels.items()},
        ),
        curve(
            replace(
                _shape(f"{name}.fabric", f"Traffic between the partitions, {what}", "share of L2 reads", "", 0.1),
                error="relative",
                note=f"Sizes where it is less than {LEAST_FABRIC:.0%} of the reads are left out.",
            ),
            {x: share for x, share in fabric.items() if share >= LEAST_FABRIC},
            {x: k.fabric_bytes / k.l2_read_bytes for x, k in kernels.items()},
        ),
    ]


def _bandwidth(
    name: str, what: str, rows: Rows, kernels: Kernels, timed: Mapping[float, float], gpu: GpuSpec
) -> list[Curve]:
    """Bytes read over time, of eight passes and one launch; timed alone, and while the counters were read."""

    def all_passes(mib: float, kernel: KernelResult) -> float:
        overhead = gpu.sm.kernel_overhead_cycles / kernel.clock_hz
        time = overhead + seconds(kernel, gpu) / _passes(mib) * capacity.PASSES
        return capacity.PASSES * mib * MIB / time / 1e12

    simulated = {x: all_passes(x, k) for x, k in kernels.items()}
    shape = replace(_shape("", "", "bandwidth", "TB/s", 0.1), error="relative", log_x=True)
    return [
        curve(replace(shape, name=f"{name}.bandwidth", title=f"Read bandwidth, {what}"), timed, simulated),
        curve(
            replace(
                shape,
                name=f"{name}.profiled",
                title=f"Read bandwidth of the profiled runs, {what}",
                target=None,
                note="The times that belong to the counters of the same name.",
            ),
            {x: r.l2_read_bytes / r.time_us / 1e6 for x, r in rows.items()},
            simulated,
        ),
    ]


def _written(name: str, rows: Rows, kernels: Kernels) -> Curve:
    what = {"write_first": "after reads", "write_again": "over what was just written"}[name]
    return curve(
        _shape(f"{name}.dram_share", f"DRAM writes while a buffer is written {what}", "share of the buffer", "", 0.05),
        {x: r.dram_write_bytes / (x * MIB) for x, r in rows.items()},
        {x: k.dram_write_bytes / (x * MIB) for x, k in kernels.items()},
    )


def _rows(folder: Path, pattern: str) -> dict[float, CapacityRead]:
    return {row.mib: row for row in capacity_reads(folder) if row.pattern == pattern}


def _shape(name: str, title: str, y_name: str, unit: str, target: float) -> Curve:
    return Curve(name, title, "buffer", "MiB", y_name, unit, "difference", target, ())


_COUNTED = ("dram_share", "hit_rate", "fabric", "bandwidth")


def reads_study(folder: Path) -> Study:
    """Reads with fixed and with moving readers, and writes."""
    names = [f"{name}.{quantity}" for name in PATTERNS for quantity in (*_COUNTED, "profiled")]
    names += [f"{name}.dram_share" for name in WRITES]
    return Study(tuple(names), partial(simulate_reads, folder, ()))


def read_all_study(folder: Path) -> Study:
    """Every CTA reads everything."""
    names = tuple(f"read_all.{quantity}" for quantity in _COUNTED if quantity != "fabric")
    return Study(names, partial(_read_all, folder))
