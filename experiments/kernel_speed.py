"""Our kernels next to PyTorch's attention on the same card in the same run, and the ratio that each is to reach.

    python -m experiments.kernel_speed -o kernel_speed.csv

Needs a GPU and PyTorch. Every time is the median of `--repeat` whole calls between two CUDA events with other data in
the L2 before (`kernels_cupy.stopwatch`), launched while the GPU is kept busy, so that the host's time does not count.
TFLOP/s count unmasked pairs, TB/s the K and V of the cache. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.algorithms import KERNELS, kernel_module, kernels, make_plan
from kernels_cupy.campaign import compile_into, sources
from kernels_cupy.commented_csv import write_facts
from kernels_cupy.errors import CompileError, Unavailable
from kernels_cupy.gpu import Gpu, current_gpu
from kernels_cupy.provenance import provenance
from kernels_cupy.stopwatch import Stopwatch
from traces.algorithms import default_shape
from traces.launch import Plan
from traces.problem import AttentionProblem

__all__ = ["Line", "Ratio", "judged", "main", "shapes"]

BAD_INPUT = 2
SM_COUNT = 132
COPY_BYTES = 4 << 30
PAGE_SIZE = 16
NOT_FOR_SPEED = ("flash1",)
"""Algorithms with a CTA per head, whose kernels are here to be counted."""

COLUMNS = ("work", "problem", "name", "time_us", "rate", "unit", "against", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` of ours to `against`, which is to be at least `target`."""

    against: str
    value: float
    target: float

    @property
    def met(self) -> bool:
        return self.value >= self.target


@dataclass(frozen=True, slots=True)
class Line:
    """One timed call: `name` is an algorithm, or a backend of PyTorch; `rate` in `unit`."""

    work: str
    problem: AttentionProblem
    name: str
    time_us: float
    rate: float
    unit: str
    ratios: tuple[Ratio, ...] = ()


def shapes() -> Iterator[tuple[str, AttentionProblem]]:
    """(`forward`, `backward` or `decode`; problem), those that decide first."""
    long = [
        AttentionProblem(heads=32, seq=seq, dim=dim, causal=causal)
        for seq in (4096, 2048, 8192)
        for dim in (128, 64)
        for causal in (False, True)
    ]
    decoding = [
        AttentionProblem(batch=batch, heads=32, kv_heads=8, seq=1, seq_kv=keys, dim=128, kv_dtype=kv_dtype)
        for batch, keys in ((16, 4096), (64, 4096), (16, 16384), (128, 4096), (1, 32768))
        for kv_dtype in ("fp16", "fp8")
    ]
    yield from (("decode", problem) for problem in decoding)
    for problem in long:
        yield "forward", problem
        yield "backward", problem
    for causal in (False, True):
        yield "backward", AttentionProblem(heads=32, seq=4096, dim=256, causal=causal)


def judged(
    work: str,
    problem: AttentionProblem,
    ours: Mapping[str, float],
    torch: Mapping[str, float],
    copy_tb_per_s: float,
    in_16_bits: Mapping[str, float],
) -> list[Line]:
    """A line for every call, ours with the ratios that they are to reach.

    Args:
        ours, torch: algorithm, or backend → µs.
        copy_tb_per_s: measured copy bandwidth, read and written bytes.
        in_16_bits: for a cache of 8 bits, our algorithms' µs with one of 16.
    """
    lines = []
    for name, time_us in (*ours.items(), *((f"torch {backend}", us) for backend, us in torch.items())):
        rate, unit = _rate(work, problem, time_us)
        lines.append(Line(work, problem, name, time_us, rate, unit))
    return [
        replace(line, ratios=tuple(_ratios(line, torch, copy_tb_per_s, in_16_bits))) if line.name in ours else line
        for line in lines
    ]


def _rate(work: str, p: AttentionProblem, time_us: float) -> tuple[float, str]:
    if work != "decode":
        return p.flops(work) / time_us / 1e6, "TFLOP/s"
    row_bytes = p.dim * p.kv_storage.element_bytes + p.dim_v * p.v_storage.element_bytes
    return p.batch * p.kv_heads * p.seq_kv * row_bytes / time_us / 1e6, "TB/s"


def _ratios(
    line: Line, torch: Mapping[str, float], copy_tb_per_s: float, in_16_bits: Mapping[str, float]
) -> Iterator[Ratio]:
    """What is asked of our kernels: of naive, of FlashAttention-2, and of decoding."""
    p, name = line.problem, line.name
    if name == "naive" and "naive" in torch:
        yield Ratio("torch naive", torch["naive"] / line.time_us, 0.9)
    dims = {"flash2": (64, 128), "flash2_backward": (64, 128, 256)}
    if p.dim in dims.get(name, ()) and p.seq >= 2048 and "flash" in torch:
        yield Ratio("torch flash", torch["flash"] / line.time_us, 1.0)
    if name not in ("decode_split", "paged_decode") or p.batch < 16 or p.seq_kv < 4096:
        return
    if p.kv_storage.element_bytes == 1:
        if name in in_16_bits:
            yield Ratio("16-bit cache", in_16_bits[name] / line.time_us, 1.7)
        return
    if torch:
        best = min(torch, key=lambda backend: torch[backend])
        yield Ratio(f"torch {best}", torch[best] / line.time_us, 1.0)
    yield Ratio("copy bandwidth", line.rate / copy_tb_per_s, 0.85)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if every ratio is reached, 1 if not or if time was over first, 2 if it cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.kernel_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path("kernel_speed.csv"), help="CSV to write")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="timed calls, of which the median counts")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="stop then (default 60)")
    parser.add_argument(
        "--compile", type=Path, metavar="FOLDER", help="compile into FOLDER, for GPUSIM_CUBINS elsewhere"
    )
    parser.add_argument("--arch", default="sm_90a", help="target of --compile (default sm_90a)")
    options = parser.parse_args(arguments)
    names = options.algorithms or [name for name in KERNELS if name not in NOT_FOR_SPEED]
    try:
        for name in names:
            kernel_module(name)
        if options.compile:
            plans = [
                plan for work, p in shapes() for plan in _plans(names, work, p, SM_COUNT) if isinstance(plan, Plan)
            ]
            compile_into(options.compile, plans, options.arch)
            return 0
        return _measure(names, options.output, options.repeat, options.limit)
    except (ValueError, Unavailable, CompileError) as error:
        print(f"kernel_speed: error: {error}", file=sys.stderr)
        return BAD_INPUT


def _measure(names: Sequence[str], output: Path, repeat: int, limit_s: float) -> int:
    gpu, start = current_gpu(), time.monotonic()
    try:
        from kernels_cupy.torch_attention import torch_times
    except ImportError as error:
        raise Unavailable(f"PyTorch cannot be imported ({error}); it is what the kernels are compared with") from None
    copy_tb_per_s = _copy_bandwidth(gpu, repeat)
    print(f"{gpu.name}: copies {copy_tb_per_s:.2f} TB/s (read and written)")
    complete, missed, in_16_bits = True, 0, dict[str, float]()
    with output.open("w", newline="") as file:
        about = {**provenance(*sources()), "copy_tb_per_s": f"{copy_tb_per_s:.3f}", "repeat": str(repeat), "l2": "cold"}
        write_facts(file, about)
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for work, problem in shapes():
            if time.monotonic() - start > limit_s:
                complete = False
                print(f"kernel_speed: {limit_s:.0f} s are over; the rest is not measured", file=sys.stderr)
                break
            ours = _own_times(names, work, problem, gpu, repeat)
            eight_bits = problem.kv_storage.element_bytes == 1
            forward = "forward" if work == "decode" else work
            torch = {} if eight_bits or not ours else torch_times(problem, gpu, repeat, forward)
            lines = judged(work, problem, ours, torch, copy_tb_per_s, in_16_bits if eight_bits else {})
            in_16_bits = in_16_bits if eight_bits else dict(ours)
            table.writerows(row for line in lines for row in _rows(line))
            file.flush()
            print(_heading(work, problem), *map(_text, lines), sep="\n", flush=True)
            missed += sum(not ratio.met for line in lines for ratio in line.ratios)
    print(f"{missed} ratios missed, {time.monotonic() - start:.0f} s")
    return 0 if complete and not missed else 1


def _own_times(names: Sequence[str], work: str, problem: AttentionProblem, gpu: Gpu, repeat: int) -> dict[str, float]:
    """µs of every algorithm that does this work and supports the problem; refusals are said."""
    import cupy

    from kernels_cupy.run import Session

    times = {}
    for plan in _plans(names, work, problem, gpu.sm_count):
        if isinstance(plan, Plan):
            times[plan.algorithm] = Session(plan, None).time(repeat).median_us
            cupy.get_default_memory_pool().free_all_blocks()
        else:
            print(f"  refused: {plan}")
    return times


def _plans(names: Sequence[str], work: str, problem: AttentionProblem, sm_count: int) -> Iterator[Plan | ValueError]:
    """The plan of every algorithm that does this work, or why its kernels refuse the problem."""
    for name in names:
        p = replace(problem, page_size=PAGE_SIZE) if name == "paged_decode" else problem
        if (default_shape(name).get("seq") == 1) != (work == "decode"):
            continue
        try:
            plan = make_plan(name, p, sm_count)
            if work in ("decode", plan.work):
                kernels(plan)
                yield plan
        except ValueError as refusal:
            yield refusal


def _copy_bandwidth(gpu: Gpu, repeat: int) -> float:
    """TB/s of a device-to-device copy, read and written bytes."""
    import cupy

    source, target = (cupy.zeros(COPY_BYTES, np.uint8) for _ in range(2))
    stopwatch = Stopwatch(gpu)

    def copy() -> None:
        target.data.copy_from_device_async(source.data, COPY_BYTES)

    copy()
    times = [stopwatch.time([copy], "cold")[0] for _ in range(repeat)]
    return 2 * COPY_BYTES / float(np.median(times)) / 1e6


def _rows(line: Line) -> Iterator[tuple[Any, ...]]:
    """One row per ratio, or one without."""
    head = (
        line.work,
        json.dumps(line.problem.to_dict()),
        line.name,
        f"{line.time_us:.2f}",
        f"{line.rate:.4g}",
        line.unit,
    )
    for ratio in line.ratios:
        yield *head, ratio.against, f"{ratio.value:.3f}", ratio.target, int(ratio.met)
    if not line.ratios:
        yield *head, "", "", "", ""


def _heading(work: str, p: AttentionProblem) -> str:
    shape = f"B{p.batch} H{p.heads} Hkv{p.kv_heads} N{p.seq} M{p.seq_kv} d{p.dim}"
    return f"{work} {shape}{' causal' if p.causal else ''}{f' {p.kv_dtype} cache' if p.kv_dtype != p.dtype else ''}"


def _text(line: Line) -> str:
    ratios = "; ".join(
        f"{r.value:.2f} of {r.against} ({'reached' if r.met else 'MISSED'} {r.target})" for r in line.ratios
    )
    return f"  {line.name:22} {line.time_us:10.1f} µs {line.rate:8.2f} {line.unit:8} {ratios}"


if __name__ == "__main__":
    sys.exit(main())
