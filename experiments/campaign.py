"""The measured campaign: hardware counters of our own kernels, over every algorithm and a grid of shapes.

    python -m experiments.campaign --list                      # what would be measured; needs no GPU
    python -m experiments.campaign --compile cubins            # compile it for another machine; needs no GPU
    python -m experiments.campaign -o own_kernels.csv          # needs a GPU and ncu; run again to go on

How cold and warm are made is said in `kernels_cupy.campaign`. The grid: each algorithm takes those shapes of its list
that its kernels support, in order, the small and common ones first. The first eight of every algorithm are one batch,
the rest another; each batch is measured cold, then warm.

Held out: of every algorithm's shapes, counted from 0 without those refused, number i is held out if i mod 4 = 3, cold
and warm alike. Nothing may be fitted to those rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels_cupy.algorithms import KERNELS, kernel_module
from kernels_cupy.campaign import REPLAY, Case, case_of, compile_into, count
from kernels_cupy.errors import CompileError, Unavailable
from traces.algorithms import algorithm as trace_algorithm
from traces.algorithms import default_shape
from traces.problem import AttentionProblem

__all__ = ["GRID", "batches", "cases", "main"]

FIRST_BATCH = 8
HELD_OUT = 4, 3
"""Number i of an algorithm's shapes is held out if i mod 4 = 3."""

BAD_INPUT = 2
SM_COUNT = 132

PASSES = 6
STARTUP_S, CASE_S, BYTES_PER_SECOND = 3.0, 0.12, 2e10
"""Guesses for `--list`: runs of a kernel to read all counters; a process's start, a call's preparation, and the rate at
which its tensors are filled."""


def _shape(heads: int, seq: int, dim: int, causal: bool = False, kv_heads: int = 0) -> dict[str, Any]:
    return {"heads": heads, "seq": seq, "dim": dim, "causal": causal, "kv_heads": kv_heads}


def _decoding(batch: int, heads: int, kv_heads: int, seq_kv: int, dim: int, kv_dtype: str = "") -> dict[str, Any]:
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq": 1, "seq_kv": seq_kv, "dim": dim}
    return shape | {"kv_dtype": kv_dtype}


def _latent(batch: int, seq_kv: int) -> dict[str, Any]:
    """Multi-head latent attention with the heads of DeepSeek-V3."""
    return _decoding(batch, 128, 1, seq_kv, 576) | {"dim_v": 512, "mla": True}


ATTENTION: tuple[dict[str, Any], ...] = (
    _shape(8, 1024, 64),
    _shape(32, 2048, 128, True),
    _shape(1, 4096, 128),
    _shape(16, 2048, 64),
    _shape(32, 4096, 128),
    _shape(8, 4096, 128, True, kv_heads=2),
    _shape(4, 512, 128),
    _shape(32, 1024, 128, True),
    _shape(16, 4096, 64, True),
    _shape(8, 2048, 256),
    _shape(32, 8192, 128, True),
    _shape(4, 8192, 64),
    _shape(1, 16384, 128),
    _shape(32, 4096, 128, kv_heads=8),
    _shape(16, 8192, 128),
    _shape(32, 2048, 64, True, kv_heads=4),
    _shape(32, 512, 256),
    _shape(8, 16384, 128, True),
    _shape(4, 4096, 256, True),
    _shape(32, 8192, 64),
    _shape(1, 32768, 64),
    _shape(16, 16384, 64, True),
    _shape(2, 32768, 128, True),
    _shape(32, 8192, 128, True, kv_heads=8),
)

DECODING: tuple[dict[str, Any], ...] = (
    _decoding(1, 32, 8, 4096, 128),
    _decoding(16, 32, 8, 4096, 128),
    _decoding(16, 32, 8, 4096, 128, "fp8"),
    _decoding(8, 16, 2, 8192, 64),
    _decoding(4, 32, 32, 2048, 128),
    _decoding(1, 32, 8, 32768, 128),
    _decoding(32, 32, 8, 2048, 128, "int8"),
    _decoding(32, 32, 8, 2048, 128),
    _decoding(16, 8, 1, 4096, 128),
    _decoding(2, 32, 8, 16384, 256),
    _decoding(64, 32, 8, 1024, 128),
    _decoding(64, 32, 8, 1024, 128, "fp8"),
    _decoding(4, 32, 8, 512, 64),
    _decoding(16, 32, 8, 16384, 128),
    _decoding(1, 8, 2, 16384, 128, "fp8"),
    _decoding(128, 32, 8, 2048, 128),
    _latent(16, 4096),
    _decoding(16, 32, 8, 4096, 128, "int8") | {"outlier_channels": 8},
    _latent(64, 1024),
    _latent(1, 8192),
)

PAGES = (16, 64, 16, 16, 8, 32, 128)
"""Page size of a paged shape: these in turn."""


UNEQUAL: tuple[dict[str, Any], ...] = ({"heads": 8, "lengths": (2048, 1024, 512), "dim": 128},)


def _fitting(
    shapes: Sequence[dict[str, Any]], most_keys: int, most_scores: float = float("inf")
) -> list[dict[str, Any]]:
    """Shapes of at most so many keys, and so many scores over all heads."""
    return [s for s in shapes if s["seq"] <= most_keys and s["heads"] * s["seq"] ** 2 <= most_scores]


def _widest_last(shapes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Head dimensions past 128 behind the others, whose numbers are thus what they were without them."""
    return sorted(shapes, key=lambda shape: shape["dim"] > 128)


GRID: dict[str, Sequence[dict[str, Any]]] = {
    "naive": [*_fitting(ATTENTION, 16384, 32 * 4096**2), *UNEQUAL],
    "naive_online_softmax": [*_fitting(ATTENTION, 16384, 16 * 4096**2), *UNEQUAL],
    "flash1": _fitting(ATTENTION, 4096),
    "flash2": ATTENTION,
    "flash2_backward": [*_widest_last(_fitting(ATTENTION, 8192)), _shape(16, 2048, 256, True, kv_heads=4)],
    "decode": DECODING,
    "decode_split": DECODING,
    "paged_decode": [shape | {"page_size": PAGES[i % len(PAGES)]} for i, shape in enumerate(DECODING)],
}
"""Algorithm → shapes. Those with S in memory are bounded by it; `flash1`, a CTA per head, by its time."""


def shapes_of(algorithm: str) -> Sequence[dict[str, Any]]:
    """An algorithm's shapes; one that the grid does not name takes those of its kind."""
    if algorithm in GRID:
        return GRID[algorithm]
    return DECODING if default_shape(algorithm).get("seq") == 1 else _fitting(ATTENTION, 8192)


def cases(algorithm: str, sm_count: int = SM_COUNT) -> tuple[list[Case], list[str]]:
    """What is measured of an algorithm, in order, and the sentences of what its kernels refuse."""
    every, rest = HELD_OUT
    supported: list[Case] = []
    refusals = []
    for shape in shapes_of(algorithm):
        try:
            supported.append(
                case_of(algorithm, AttentionProblem(**shape), sm_count, held_out=len(supported) % every == rest)
            )
        except ValueError as refusal:
            refusals.append(f"{algorithm} {_text(shape)}: {refusal}")
    return supported, refusals


def batches(algorithms: Sequence[str], sm_count: int = SM_COUNT) -> Iterator[tuple[str, list[Case]]]:
    """(state of the L2, cases) in the order in which they are measured."""
    own = [cases(name, sm_count)[0] for name in algorithms]
    for part in (slice(0, FIRST_BATCH), slice(FIRST_BATCH, None)):
        batch = [case for some in own for case in some[part]]
        for l2 in REPLAY:
            if batch:
                yield l2, batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when all is measured, 1 when time was over first, 2 for bad input or a machine that cannot."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("own_kernels.csv"), help="CSV to start or to go on with"
    )
    parser.add_argument("--limit", type=float, default=200, metavar="SECONDS", help="stop then (default 200)")
    parser.add_argument(
        "--list", action="store_true", help="print the grid and what it should take, and measure nothing"
    )
    parser.add_argument(
        "--compile", type=Path, metavar="FOLDER", help="compile into FOLDER, for GPUSIM_CUBINS elsewhere"
    )
    parser.add_argument("--arch", default="sm_90a", help="target of --compile (default sm_90a)")
    options = parser.parse_args(arguments)
    names = options.algorithms or list(KERNELS)
    try:
        for name in names:
            kernel_module(name)
        if options.list:
            _list(names)
        elif options.compile:
            compile_into(options.compile, [case.plan for name in names for case in cases(name)[0]], options.arch)
        else:
            from kernels_cupy.gpu import current_gpu

            return 0 if count(batches(names, current_gpu().sm_count), options.output, options.limit) else 1
    except (ValueError, Unavailable, CompileError) as error:
        print(f"campaign: error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _list(names: Sequence[str]) -> None:
    """A line per case: its shape, the HBM bytes of its textbook formula, and whether it is held out."""
    for name in names:
        supported, refusals = cases(name)
        for case in supported:
            moved = trace_algorithm(name).textbook(case.plan)
            expected = sum(read + written for read, written in moved.values())
            mark = "held out" if case.held_out else ""
            print(f"{name:22} {_described(case.plan.problem):48} {expected / 1e6:10,.1f} MB  {mark}")
        for sentence in refusals:
            print(f"refused: {sentence}")
    total = 0.0
    for l2, batch in batches(names):
        seconds = _estimate(l2, batch)
        total += seconds
        print(f"{l2}: {len(batch)} calls, {sum(len(c.plan.launches) for c in batch)} kernels, about {seconds:.0f} s")
    print(f"about {total:.0f} s in all")


def _estimate(l2: str, batch: Sequence[Case]) -> float:
    """Seconds that a batch should take."""
    size = sum(tensor.size_bytes for case in batch for tensor in case.plan.tensors)
    once = STARTUP_S + len(batch) * CASE_S + size / BYTES_PER_SECOND
    if l2 == "warm":
        return PASSES * once
    return once + PASSES * size / BYTES_PER_SECOND


def _described(p: AttentionProblem) -> str:
    parts = [f"B{p.batch} H{p.heads} Hkv{p.kv_heads} N{p.seq} M{p.seq_kv} d{p.dim}", "causal" if p.causal else ""]
    parts += ["lengths " + ",".join(map(str, p.lengths)) if p.lengths else ""]
    parts += [p.kv_dtype if p.kv_dtype != p.dtype else "", f"page {p.page_size}" if p.page_size else ""]
    return " ".join(part for part in parts if part)


def _text(shape: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in shape.items() if value)


if __name__ == "__main__":
    sys.exit(main())
