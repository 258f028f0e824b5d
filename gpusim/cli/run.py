"""`gpusim run ALGO`: runs the CUDA kernels of an algorithm on this machine's GPU, and checks, times and counts them."""

from __future__ import annotations

import argparse

from gpusim.cli.options import (
    add_problem_options,
    add_schedule_options,
    atomic_write,
    check_outputs,
    problem_from,
    schedule_settings,
    whole,
)
from gpusim.cli.outputs import emit_json
from gpusim.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim run`."""
    from kernels_cupy.command import add_run_options

    add_run_options(parser, whole)
    add_problem_options(parser)
    add_schedule_options(parser)
    parser.add_argument("--json", metavar="FILE|-", help="write the result as JSON (- is standard output)")


def run(args: argparse.Namespace) -> int:
    """Run the kernels; status 1 if `--verify` finds a wrong output.

    Raises:
        UserError: bad input, or a machine that lacks a GPU, CuPy or Nsight Compute.
    """
    from kernels_cupy.command import execute
    from kernels_cupy.errors import CompileError, Unavailable

    if not args.compile:
        check_outputs(args)
    problem, schedule = problem_from(args), schedule_settings(args)
    try:
        return execute(args, problem, schedule, lambda result: emit_json([result], args.json), atomic_write)
    except (ValueError, Unavailable, CompileError) as error:
        raise UserError(str(error)) from None
