"""`run ALGO`: what `gpusim run` and `python -m kernels_cupy` have in common."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels_cupy.algorithms import KERNELS, kernel_module, make_plan
from kernels_cupy.campaign import compile_into
from kernels_cupy.cta_file import cta_text
from kernels_cupy.gpu import current_gpu
from kernels_cupy.measure import measure, render
from kernels_cupy.stamps import stamps_table, stamps_text
from kernels_cupy.stopwatch import L2_STATES
from traces.problem import AttentionProblem

NOT_ATTENTION = 1
"""Exit status of `--verify` when an output is wrong."""
COMPILED_FOR_SMS = 132
"""SMs of the GPU that `--compile` makes schedules for: those of `--arch`'s default."""


def add_run_options(parser: argparse.ArgumentParser, whole: Callable[[str], int]) -> None:
    """The algorithm, and what to do with it; `whole` converts a number of at least 1."""
    parser.add_argument("algorithm", metavar="ALGO", help=f"what to run: {', '.join(KERNELS)}")
    group = parser.add_argument_group("what to do")
    group.add_argument("--verify", action="store_true", help="compare the outputs with float64; exit status 1 if wrong")
    group.add_argument("--counters", action="store_true", help="read hardware counters with Nsight Compute (ncu)")
    group.add_argument(
        "--ctas", metavar="FILE", help="record the SM, start and end of every CTA in a run more, and write a CSV"
    )
    group.add_argument(
        "--stamps", metavar="FILE", help="record when CTAs copied, multiplied and stored in that run, and write a CSV"
    )
    group.add_argument("--repeat", type=whole, default=20, metavar="N", help="timed runs, of which the median counts")
    group.add_argument(
        "--l2",
        choices=L2_STATES,
        default="cold",
        help="L2 before a run: cold (other data), warm (what the last run left), flush (cold before each kernel)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the random inputs")
    group.add_argument(
        "--compile",
        metavar="FOLDER",
        help=f"only compile what this would run, on {COMPILED_FOR_SMS} SMs, into FOLDER, for GPUSIM_CUBINS elsewhere",
    )
    group.add_argument("--arch", default="sm_90a", help="target of --compile (default sm_90a)")


def execute(
    args: argparse.Namespace,
    problem: AttentionProblem,
    schedule: Mapping[str, str],
    write_json: Callable[[dict[str, Any]], None],
    write_file: Callable[[str, str], object],
) -> int:
    """Run, print the table (unless `--json -`), write the files, and return the exit status. Or only compile.

    Args:
        write_json: what to do with the result, if `--json` is given.
        write_file: writes to a path (first) a text (second).

    Raises:
        ValueError, Unavailable: one sentence.
    """
    kernel_module(args.algorithm)  # an unknown name is refused before a missing GPU
    if args.compile:
        plan = make_plan(args.algorithm, problem, COMPILED_FOR_SMS, schedule)
        compile_into(Path(args.compile), [plan], args.arch, _recorded(args))
        return 0
    plan = make_plan(args.algorithm, problem, current_gpu().sm_count, schedule)
    measurement = measure(
        plan,
        l2=args.l2,
        repeat=args.repeat,
        check=args.verify,
        count=args.counters,
        record=_recorded(args),
        seed=args.seed,
    )
    if args.json != "-":
        sys.stdout.write(render(measurement))
    if args.json:
        write_json(measurement.to_dict())
    if measurement.recorded:
        about = {
            **measurement.provenance,
            "run_us": f"{measurement.total['time_us']:.2f}",
            "recorded_run_us": f"{measurement.recorded.time_us:.2f}",
        }
        if args.ctas:
            write_file(args.ctas, cta_text(plan, args.l2, measurement.recorded.launches, about))
        if args.stamps:
            write_file(args.stamps, stamps_text(measurement.recorded, about))
            if args.json != "-":
                sys.stdout.write("\n" + stamps_table(measurement.recorded))
    return NOT_ATTENTION if args.verify and not measurement.verified else 0


def _recorded(args: argparse.Namespace) -> str:
    """What a run more records of CTAs: `stamps`, `ctas` or nothing."""
    return "stamps" if args.stamps else "ctas" if args.ctas else ""


def print_json(result: dict[str, Any]) -> None:
    """To standard output, on one line."""
    print(json.dumps(result))
