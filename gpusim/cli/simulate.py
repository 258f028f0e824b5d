"""`gpusim simulate ALGO...`: replays algorithms, or a trace file, on a GPU and reports where the bytes went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusim.cli.options import (
    add_machine_options,
    add_output_options,
    add_problem_options,
    add_schedule_options,
    atomic_write,
    check_outputs,
    given_problem_or_schedule,
    gpu_from,
    plan_from,
    problem_from,
    schedule_settings,
)
from gpusim.errors import UserError

if TYPE_CHECKING:
    from gpusim.result import Result
    from gpusim.spec import GpuSpec
    from traces.launch import Plan
    from traces.problem import AttentionProblem

__all__ = ["add_arguments", "run"]

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim simulate`."""
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help="what to simulate (see gpusim algorithms)")
    parser.add_argument("--trace", metavar="FILE", help="replay a file of gpusim trace instead of an ALGO")
    add_problem_options(parser)
    add_machine_options(parser)
    add_schedule_options(parser)
    add_output_options(parser)
    group = parser.add_argument_group("what to do")
    only = group.add_mutually_exclusive_group()
    only.add_argument("--footprint", action="store_true", help="only show the memory that the tensors take")
    only.add_argument("--analytic", action="store_true", help="only show the closed forms: HBM bytes, FLOPs, intensity")
    group.add_argument(
        "--train", action="store_true", help="follow each ALGO by its backward pass, on the same tensors"
    )
    group.add_argument("--check", action="store_true", help="verify conservation of bytes at every level")
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on standard error")


def run(args: argparse.Namespace) -> int:
    """Simulate the algorithms one after another, and write what has been finished even when interrupted.

    Raises:
        UserError: bad input, found before anything is simulated.
    """
    check_outputs(args)
    gpu = gpu_from(args)
    plans = _plans(args, gpu)
    if args.ctas and len(plans) > 1:
        raise UserError(f"--ctas {args.ctas} holds the CTAs of one ALGO, not of {', '.join(args.algorithms)}")
    if args.footprint or args.analytic:
        from gpusim.cli import estimates

        return estimates.run(args, gpu, plans)

    from gpusim.cli.outputs import write_outputs
    from gpusim.plans import check_fits

    for plan in plans:
        check_fits(plan, gpu)
    results = _simulate(args, gpu, plans)
    if not results:
        raise KeyboardInterrupt
    write_outputs(args, [result.to_dict() for result in results], plans[: len(results)])
    if args.ctas:
        _write_ctas(args, plans[0], results[0])
    missing = [plan.algorithm for plan in plans[len(results) :]]
    if missing:
        print(f"gpusim: interrupted before the end of {', '.join(missing)}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _plans(args: argparse.Namespace, gpu: GpuSpec) -> list[Plan]:
    if args.trace is not None:
        return [_replayed(args)]
    if not args.algorithms:
        raise UserError("an ALGO or --trace FILE is needed (gpusim algorithms lists them)")
    twice = [name for name in args.algorithms if args.algorithms.count(name) > 1]
    if twice:
        raise UserError(f"algorithm {twice[0]} is given twice")
    if args.train:
        return [_train_plan(args, name, problem_from(args), gpu) for name in args.algorithms]
    return [plan_from(args, name, problem_from(args, name), gpu) for name in args.algorithms]


def _train_plan(args: argparse.Namespace, name: str, problem: AttentionProblem, gpu: GpuSpec) -> Plan:
    """Forward and backward pass of the algorithm `name`."""
    from gpusim.plans import make_plan

    if args.schedule == "best":
        raise UserError("--schedule best looks for a forward pass's tiles; leave it out with --train")
    return make_plan(name, problem, gpu, schedule_settings(args), train=True)


def _replayed(args: argparse.Namespace) -> Plan:
    given = given_problem_or_schedule(args)
    if args.algorithms:
        raise UserError(f"--trace replays the algorithm in its file; leave out {' '.join(args.algorithms)}")
    if args.train:
        raise UserError("--trace replays what is in its file; leave out --train")
    if given:
        raise UserError(f"--trace has its problem and schedule in the file; leave out {', '.join(given)}")
    from traces.replay import load_trace

    try:
        return load_trace(args.trace)
    except ValueError as error:
        raise UserError(str(error)) from None


def _simulate(args: argparse.Namespace, gpu: GpuSpec, plans: Sequence[Plan]) -> list[Result]:
    """The results; fewer than plans after an interrupt."""
    from gpusim.cli.progress import Progress
    from gpusim.machine import simulate

    if not args.quiet:
        _announce_compilation()
    results: list[Result] = []
    try:
        for plan in plans:
            with Progress(plan.algorithm, 100, "%", args.quiet) as progress:
                results.append(simulate(plan, gpu, args.l2, args.check, progress, record_ctas=bool(args.ctas)))
    except KeyboardInterrupt:
        return results
    if args.check and not args.quiet:
        print("checked: bytes are conserved at every level", file=sys.stderr)
    return results


def _write_ctas(args: argparse.Namespace, plan: Plan, result: Result) -> None:
    """The file of `--ctas`, in the form of measured ones."""
    from kernels_cupy.cta_file import cta_text

    launches = [kernel.cta_times for kernel in result.kernels if kernel.cta_times]
    atomic_write(args.ctas, cta_text(plan, args.l2, launches, {"gpu": f"{result.gpu.name}, simulated"}))
    if not args.quiet:
        print(f"wrote {args.ctas}", file=sys.stderr)


def _announce_compilation() -> None:
    from gpusim.jit import cache_folder

    if not any(cache_folder().rglob("*.nbc")):
        print("compiling the simulator, once per version (10 to 30 s) …", file=sys.stderr, flush=True)
