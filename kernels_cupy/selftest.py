"""Runs every algorithm's kernels on this GPU: are they right on many shapes, and how fast next to PyTorch?

python -m kernels_cupy.selftest [ALGO ...] [--no-timing] [--no-verify]
python -m kernels_cupy.selftest [ALGO ...] --compile FOLDER      # on any machine, for $GPUSIM_CUBINS where the GPU is
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels_cupy import verify
from kernels_cupy.algorithms import KERNELS, kernel_module, kernels, make_plan
from kernels_cupy.campaign import compile_into
from kernels_cupy.errors import CompileError, Unavailable
from kernels_cupy.gpu import Gpu, current_gpu
from kernels_cupy.kernel import compile_all
from kernels_cupy.run import Session
from traces.algorithms import algorithm as trace_algorithm
from traces.algorithms import default_shape
from traces.launch import Plan
from traces.problem import AttentionProblem

SM_COUNT = 132

SHAPES: tuple[dict[str, Any], ...] = (
    {"heads": 4, "kv_heads": 2, "seq": 256, "dim": 64},
    {"batch": 2, "heads": 8, "kv_heads": 8, "seq": 1024, "dim": 128, "causal": True},
    {"batch": 2, "heads": 6, "kv_heads": 2, "seq": 333, "seq_kv": 517, "dim": 128, "causal": True, "layout": "bshd"},
    {"heads": 3, "kv_heads": 1, "seq": 516, "seq_kv": 332, "dim": 80, "dtype": "bf16", "causal": True},
    {"heads": 2, "seq": 77, "seq_kv": 99, "dim": 8},
    {"heads": 2, "seq": 200, "seq_kv": 1001, "dim": 256, "dtype": "bf16", "layout": "bshd"},
    {"batch": 3, "heads": 2, "seq": 130, "seq_kv": 2050, "dim": 40},
    {"heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 2000, "dim": 128},
    {"heads": 2, "seq": 300, "dim": 192, "dtype": "bf16", "causal": True},
    {"heads": 1, "seq": 40, "seq_kv": 40000, "dim": 32, "causal": True},
    {"heads": 2, "seq": 500, "dim": 64, "causal": True, "window": 100},
    {"heads": 2, "seq": 260, "dim": 192, "dim_v": 128},
)
"""Both masks and layouts, GQA, ragged and odd lengths, rows without visible keys, a single row, long rows,
a window, a head dimension of V of its own."""

DECODED: tuple[dict[str, Any], ...] = (
    {"heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 1000, "dim": 128},
    {"batch": 3, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 4096, "dim": 128, "dtype": "bf16"},
    {"batch": 15, "heads": 16, "kv_heads": 8, "seq": 2, "seq_kv": 1100, "dim": 128, "causal": True},
    {"batch": 40, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 515, "dim": 128, "layout": "bshd"},
    {"heads": 14, "kv_heads": 2, "seq": 3, "seq_kv": 777, "dim": 64, "causal": True},
    {"heads": 40, "kv_heads": 1, "seq": 1, "seq_kv": 2000, "dim": 128, "dtype": "bf16"},
    {"heads": 4, "kv_heads": 4, "seq": 9, "seq_kv": 3000, "dim": 256, "causal": True, "window": 300},
    {"heads": 10, "kv_heads": 2, "seq": 2, "kv_lengths": (0, 1, 1000, 33, 17), "dim": 128, "causal": True},
    {"heads": 6, "kv_heads": 2, "lengths": (3, 0, 1, 9), "kv_lengths": (700, 50, 0, 5), "dim": 96, "causal": True},
    {"heads": 12, "kv_heads": 4, "seq": 5, "seq_kv": 9000, "dim": 128, "causal": True, "window": 1000},
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 600, "dim": 192, "dim_v": 128},
    {"batch": 2, "heads": 2, "kv_heads": 2, "seq": 70, "seq_kv": 600, "dim": 80, "causal": True, "layout": "bshd"},
    {"batch": 3, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 2000, "dim": 128, "kv_dtype": "fp8"},
    {
        "batch": 3,
        "heads": 8,
        "kv_heads": 2,
        "seq": 3,
        "seq_kv": 999,
        "dim": 64,
        "kv_dtype": "int8",
        "kv_scale": "channel",
    },
    {
        "heads": 8,
        "kv_heads": 2,
        "seq": 6,
        "seq_kv": 999,
        "dim": 128,
        "dtype": "bf16",
        "kv_dtype": "int8",
        "causal": True,
    },
    {"heads": 4, "kv_heads": 1, "seq": 1, "seq_kv": 3000, "dim": 256, "kv_dtype": "fp8", "kv_scale": "head"},
    {"batch": 60, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 600, "dim": 128, "kv_dtype": "int8", "layout": "bshd"},
    {"heads": 8, "kv_heads": 2, "seq": 1, "kv_lengths": (900, 0, 31), "dim": 128, "dtype": "bf16", "kv_dtype": "fp8"},
    {
        "heads": 8,
        "kv_heads": 2,
        "seq": 1,
        "kv_lengths": (900, 0, 31),
        "dim": 128,
        "kv_dtype": "fp8",
        "kv_scale": "channel",
    },
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 700, "dim": 80, "dim_v": 128, "v_dtype": "fp8"},
    {"batch": 3, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 2000, "kv_dtype": "fp8", "outlier_channels": 4},
    {
        "batch": 2,
        "heads": 8,
        "kv_heads": 2,
        "seq": 6,
        "seq_kv": 999,
        "dtype": "bf16",
        "kv_dtype": "int8",
        "kv_scale": "channel",
        "outlier_channels": 18,
        "causal": True,
    },
    {
        "heads": 4,
        "kv_heads": 1,
        "seq": 1,
        "kv_lengths": (900, 0, 31),
        "dim": 256,
        "kv_dtype": "int8",
        "kv_scale": "head",
        "outlier_channels": 2,
    },
    {
        "heads": 8,
        "kv_heads": 2,
        "seq": 1,
        "seq_kv": 1500,
        "kv_dtype": "fp8",
        "v_dtype": "fp16",
        "outlier_channels": 32,
        "layout": "bshd",
    },
    {"batch": 2, "heads": 128, "seq": 1, "seq_kv": 2000, "dim": 576, "dim_v": 512, "mla": True},
    {
        "heads": 16,
        "seq": 3,
        "kv_lengths": (0, 1, 700, 65),
        "dim": 576,
        "dim_v": 512,
        "mla": True,
        "dtype": "bf16",
        "causal": True,
    },
    {
        "batch": 3,
        "heads": 20,
        "seq": 2,
        "seq_kv": 999,
        "dim": 192,
        "dim_v": 128,
        "mla": True,
        "causal": True,
        "window": 100,
    },
    {"heads": 40, "seq": 1, "seq_kv": 3000, "dim": 320, "dim_v": 256, "mla": True, "layout": "bshd"},
)
"""For the algorithms of decoding: groups of 1 to 40, several tokens, contexts of unequal lengths, some empty, windows,
quantised caches with all kinds of scales, of V only, with outlier channels; latent caches."""

SPECIAL: dict[str, tuple[tuple[dict[str, Any], dict[str, Any]], ...]] = {
    "flash2": (
        ({"heads": 4, "kv_heads": 2, "lengths": (300, 0, 77, 1), "kv_lengths": (200, 50, 0, 900), "causal": True}, {}),
        ({"heads": 2, "seq": 700, "dim": 64, "causal": True, "window": 100}, {"cta_order": "swizzled"}),
        ({"heads": 2, "seq": 100, "seq_kv": 3000, "dim": 192, "dim_v": 128}, {"stages": 2, "kv_order": "sawtooth"}),
        ({"heads": 4, "kv_heads": 1, "seq": 64, "seq_kv": 5000, "causal": True}, {"splits": 5, "tile_q": 64}),
        ({"heads": 32, "seq": 8192, "dim": 64, "causal": True, "batch": 2}, {"cta_order": "longest_first"}),
    ),
}
"""Shapes and schedule changes of one algorithm's own."""

UNEQUAL: tuple[dict[str, Any], ...] = (
    {"heads": 4, "kv_heads": 2, "lengths": (300, 0, 77, 1), "kv_lengths": (200, 50, 0, 900), "causal": True},
    {"heads": 8, "lengths": (2048, 1024, 512)},
    {"heads": 2, "kv_heads": 1, "lengths": (130, 7, 259), "dim": 72, "dtype": "bf16", "layout": "bshd"},
    {"heads": 2, "lengths": (500, 33), "dim": 64, "causal": True, "window": 100},
    {"heads": 1, "lengths": (64, 40), "kv_lengths": (30000, 5), "causal": True},
)
"""For the algorithms that pad sequences of unequal lengths: empty ones, odd lengths, rows longer than stay on chip."""

SPECIAL["naive"] = SPECIAL["naive_online_softmax"] = tuple((shape, {}) for shape in UNEQUAL)

WIDE: tuple[dict[str, Any], ...] = (
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 600, "dim": 256, "causal": True},
    {
        "heads": 4,
        "kv_heads": 1,
        "seq": 516,
        "seq_kv": 332,
        "dim": 160,
        "dtype": "bf16",
        "causal": True,
        "layout": "bshd",
    },
    {"heads": 2, "seq": 333, "seq_kv": 517, "dim": 192, "dim_v": 128, "causal": True, "layout": "bshd"},
    {"heads": 2, "seq": 77, "seq_kv": 99, "dim": 136, "dim_v": 200},
    {"heads": 2, "seq": 70, "dim": 64, "dim_v": 256},
    {"heads": 2, "seq": 1, "seq_kv": 65, "dim": 248},
    {"heads": 32, "seq": 4096, "dim": 256, "causal": True},
)
"""Head dimensions past 128 of a backward pass: those of K and V alike or not, whole panels of 64 columns or not, a full
card."""

SPECIAL["flash2_backward"] = tuple((shape, {}) for shape in WIDE)

SPECIAL["paged_decode"] = (
    *((shape, {"variant": variant}) for variant in ("v1", "v2") for shape in DECODED),
    ({"batch": 2, "heads": 4, "kv_heads": 2, "seq": 1, "seq_kv": 900, "page_size": 24, "prefix": 100}, {}),
)

TIMED: tuple[dict[str, Any], ...] = (
    {"heads": 32, "seq": 2048, "dim": 128},
    {"heads": 32, "seq": 4096, "dim": 128},
    {"heads": 32, "seq": 4096, "dim": 128, "causal": True},
    {"heads": 16, "seq": 4096, "dim": 64},
    {"heads": 1, "seq": 8192, "dim": 128},
    {"heads": 16, "seq": 4096, "dim": 256},
    {"heads": 16, "seq": 4096, "dim": 256, "causal": True},
)

DECODE_TIMED: tuple[dict[str, Any], ...] = tuple(
    {"batch": batch, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": context, "dim": 128}
    for batch, context in ((1, 32768), (16, 4096), (16, 16384), (32, 8192), (64, 4096), (128, 4096))
)
QUANTISED_TIMED: tuple[dict[str, Any], ...] = tuple(
    {**shape, "kv_dtype": dtype} for shape in DECODE_TIMED[1:5:3] for dtype in ("fp8", "int8")
)
LATENT_TIMED: tuple[dict[str, Any], ...] = tuple(
    {"batch": batch, "heads": 128, "seq": 1, "seq_kv": context, "dim": 576, "dim_v": 512, "mla": True}
    for batch, context in ((1, 32768), (16, 4096), (64, 4096))
)


def is_decoding(algorithm: str) -> bool:
    """Whether an algorithm attends from few query rows."""
    return default_shape(algorithm).get("seq") == 1


def check(algorithm: str, gpu: Gpu) -> int:
    """Verify one algorithm on all shapes, a line each; the number of wrong ones."""
    wrong = 0
    plans: list[tuple[str, Plan]] = []
    for shape, schedule in _verified(algorithm):
        text = " ".join(f"{key}={value}" for key, value in (shape | schedule).items())
        try:
            plans.append((text, _supported_plan(algorithm, gpu.sm_count, shape, schedule)))
        except ValueError as refusal:
            print(f"  refused  {text}: {refusal}", flush=True)
    compile_all([spec for _, plan in plans for spec in kernels(plan)], gpu.arch)  # all at once is faster
    for text, plan in plans:
        inputs = verify.consistent_inputs(plan)
        session = Session(plan, inputs)
        session.launch()
        errors, limit = verify.errors(session, inputs), verify.tolerance(plan)
        passes = all(error <= limit for error in errors.values())
        wrong += not passes
        listed = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        print(f"  {'right' if passes else 'WRONG':8} {text}: {listed} (limit {limit:.1e})", flush=True)
    return wrong


def _verified(algorithm: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Shapes and schedule changes that an algorithm is verified on."""
    yield from ((shape, {}) for shape in (DECODED if is_decoding(algorithm) else SHAPES))
    yield from SPECIAL.get(algorithm, ())


def _timed(decoding: bool) -> tuple[dict[str, Any], ...]:
    return DECODE_TIMED + QUANTISED_TIMED + LATENT_TIMED if decoding else TIMED


def _supported_plan(algorithm: str, sm_count: int, shape: dict[str, Any], schedule: dict[str, Any]) -> Plan:
    plan = make_plan(algorithm, AttentionProblem(**shape), sm_count, schedule)
    kernels(plan)
    return plan


def compile_ahead(algorithms: list[str], folder: Path, arch: str) -> None:
    """Put the cubins of all that `check` and `time` launch on a card of `SM_COUNT` SMs into `folder`."""
    plans = []
    for name in algorithms:
        for shape, schedule in (*_verified(name), *((shape, {}) for shape in _timed(is_decoding(name)))):
            with suppress(ValueError):  # refused, which the run itself will say
                plans.append(_supported_plan(name, SM_COUNT, shape, schedule))
    compile_into(folder, plans, arch)


def time(algorithms: list[str], gpu: Gpu, repeat: int) -> None:
    """Median time of every algorithm, and of what PyTorch offers, on each timed shape."""
    for decoding in (False, True):
        names = [name for name in algorithms if is_decoding(name) == decoding]
        for shape in _timed(decoding) if names else ():
            print(" ".join(f"{key}={value}" for key, value in shape.items()), flush=True)
            _time_shape(names, gpu, repeat, shape)


def _time_shape(algorithms: list[str], gpu: Gpu, repeat: int, shape: dict[str, Any]) -> None:
    problem = AttentionProblem(**shape)
    works: dict[str, int] = {}
    for algorithm in algorithms:
        try:
            plan = _supported_plan(algorithm, gpu.sm_count, shape, {})
        except ValueError as refusal:
            print(f"  {algorithm:24} refused: {refusal}")
            continue
        times = Session(plan, None).time(repeat)
        each = ", ".join(
            f"{launch.name} {us:.1f}" for launch, us in zip(plan.launches, times.kernel_medians_us, strict=True)
        )
        works[plan.work] = moved = sum(map(sum, trace_algorithm(algorithm).textbook(plan).values()))
        _line(algorithm, times.median_us, problem.flops(plan.work), moved, each)
    if {"quantised_kv", "mla"} & set(problem.features):
        return  # PyTorch's attention has no quantised cache and no latents
    try:
        from kernels_cupy.torch_attention import torch_times
    except ImportError as missing:
        print(f"  PyTorch is not here to compare with ({missing})")
        return
    for work, moved in works.items():
        for name, us in torch_times(problem, gpu, repeat, work).items():
            _line(f"torch {name} {work}", us, problem.flops(work), moved, "")


def _line(name: str, us: float, flops: int, moved: int, rest: str) -> None:
    """`moved` are the bytes of the textbook's count."""
    rates = f"{flops / us / 1e6:8.1f} TFLOP/s {moved / us / 1e6:6.2f} TB/s"
    print(f"  {name:24} {us:10.1f} µs {rates}  {rest}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if anything is wrong, 2 if it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m kernels_cupy.selftest", description=__doc__)
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--no-verify", action="store_true", help="only time")
    parser.add_argument("--no-timing", action="store_true", help="only verify")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="timed runs, of which the median counts")
    parser.add_argument(
        "--compile", type=Path, metavar="FOLDER", help="only compile into FOLDER, for GPUSIM_CUBINS elsewhere"
    )
    parser.add_argument("--arch", default="sm_90a", help="target of --compile (default sm_90a)")
    args = parser.parse_args(arguments)
    names = args.algorithms or list(KERNELS)
    wrong = 0
    try:
        for name in names:
            kernel_module(name)
        if args.compile:
            compile_ahead(names, args.compile, args.arch)
            return 0
        gpu = current_gpu()
        print(f"{gpu.name}, {gpu.arch}, {gpu.sm_count} SMs")
        for name in [] if args.no_verify else names:
            print(name)
            wrong += check(name, gpu)
        if not args.no_timing:
            time(names, gpu, args.repeat)
    except (ValueError, Unavailable, CompileError) as error:
        print(f"selftest: error: {error}", file=sys.stderr)
        return 2
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
