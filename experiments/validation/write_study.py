"""Written data: when it goes to DRAM, how much stays dirty, what is read back; and how many requests merge."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.measurements import Step, writeback_steps
from experiments.micro.merging import lockstep
from experiments.micro.pattern import MIB
from experiments.micro.writeback import STEPS, writeback
from experiments.validation.curve import HOLD_OUT, Curve, Point, curve
from experiments.validation.study import Advance, Study, by_name, stepped
from gpusim.machine import simulate
from gpusim.spec import GpuSpec

__all__ = ["measured_steps", "write_studies"]

_STEP = re.compile(r"(write|read back same|read back other|evict)\D* (\d+)(?: MiB.*)?")
_CURVES = {
    "write": ("written", "DRAM writes during the write", "dram_write_bytes"),
    "evict": ("dirty_left", "Dirty data left in the L2, written when it is evicted", "dram_write_bytes"),
    "read back same": ("read_back_same", "DRAM reads when the same SM reads it back", "dram_read_bytes"),
    "read back other": ("read_back_other", "DRAM reads when another SM reads it back", "dram_read_bytes"),
}


def measured_steps(folder: Path) -> dict[str, dict[float, Step]]:
    """The launches of each of `STEPS` in a folder of measurements, by buffer size in MiB."""
    found: dict[str, dict[float, Step]] = {step: {} for step in STEPS}
    for row in writeback_steps(folder):
        match = _STEP.fullmatch(_plain(row.step))
        if match:
            found[match[1]][float(match[2])] = row
    return found


def _plain(step: str) -> str:
    """`evict all (read 512 MiB) post 16` → `evict 16`; evictions before a write have no size and stay unmatched."""
    return re.sub(r"^evict all \(read 512 MiB\)( post)?", "evict", step).strip()


def _writeback(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    measured = measured_steps(folder)
    sizes = sorted(measured["write"])
    if not sizes:
        return []
    pattern = writeback([int(s) for s in sizes], gpu.sm.count)
    kernels = by_name(simulate(pattern, gpu, check=True, progress=advance).kernels)
    curves = []
    for step, (name, title, field) in _CURVES.items():
        shape = Curve(f"writeback.{name}", title, "buffer", "MiB", "share of the buffer", "", "difference", 0.05, ())
        curves.append(
            curve(
                shape,
                {x: getattr(row, field) / (x * MIB) for x, row in measured[step].items()},
                {x: getattr(kernels[f"{step} {x:.0f} MiB"], field) / (x * MIB) for x in sizes},
            )
        )
    return curves


def _merging(folder: Path, gpu: GpuSpec, advance: Advance) -> list[Curve]:
    points = []
    rows = [row for row in writeback_steps(folder) if row.step.startswith("lockstep")]
    for number, row in enumerate(stepped(rows, advance)):
        ctas, skew = (int(text) for text in re.search(r"(\d+) CTAs skew (\d+)", row.step).groups())  # type: ignore[union-attr]
        pattern = lockstep(skew, ctas, gpu.sm.fp32_lanes)
        l2 = "cold" if row.dram_read_bytes > MIB else "warm"  # the first launch found nothing in the L2
        kernel = simulate(pattern, gpu, l2=l2, check=True).kernels[0]
        merged = (row.sm_read_bytes / row.l2_read_bytes, kernel.sm_read_bytes / kernel.l2_read_bytes)
        points.append(Point(number, f"{ctas} CTAs, skew {skew}", *merged, number % HOLD_OUT == HOLD_OUT - 1))
    shape = Curve(
        "merging.ratio",
        "Requests of SMs per L2 request, all CTAs reading the same tiles",
        "CTAs and skew in cycles",
        "",
        "SM bytes / L2 bytes",
        "",
        "relative",
        0.15,
        (),
    )
    return [replace(shape, points=tuple(points))]


def write_studies(folder: Path) -> list[Study]:
    """Written data, and merging."""
    names = tuple(f"writeback.{name}" for name, _, _ in _CURVES.values())
    return [Study(names, partial(_writeback, folder)), Study(("merging.ratio",), partial(_merging, folder))]
