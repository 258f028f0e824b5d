"""`gpusim compare ALGO`: the CUDA kernels of an algorithm, measured and simulated, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim.cli.options import (
    add_machine_options,
    add_problem_options,
    add_schedule_options,
    atomic_write,
    check_outputs,
    given_problem_or_schedule,
    gpu_from,
    problem_from,
    schedule_settings,
    whole,
)
from gpusim.errors import UserError

if TYPE_CHECKING:
    from experiments.comparison import Measured
    from gpusim.spec import GpuSpec
    from traces.launch import Plan

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim compare`."""
    parser.add_argument("algorithm", metavar="ALGO", help="what to compare (see gpusim run --help)")
    group = parser.add_argument_group("measurement")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--live", action="store_true", help="measure on this machine's GPU (default where there is one)")
    where.add_argument("--stored", action="store_true", help="take a committed measurement of the same run")
    where.add_argument("--measurement", metavar="FILE", help="take a result of gpusim run --counters --json FILE")
    where.add_argument(
        "--ctas", dest="cta_file", metavar="FILE", help="compare the CTAs in a file of gpusim run --ctas FILE instead"
    )
    where.add_argument("--list", action="store_true", help="list the committed measurements of ALGO")
    group.add_argument("--repeat", type=whole, default=20, metavar="N", help="timed runs of a live measurement")
    add_problem_options(parser)
    add_machine_options(parser)
    add_schedule_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE|-", help="write the comparison as JSON (- is standard output)")
    group.add_argument("--html", metavar="FILE", help="write a page")
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on standard error")


def run(args: argparse.Namespace) -> int:
    """Measure or look up, simulate the very same plan, and show both.

    Raises:
        UserError: bad input, or neither a GPU nor a measurement.
    """
    check_outputs(args)
    gpu = gpu_from(args)
    try:
        if args.list:
            return _list(args.algorithm, gpu)
        if args.cta_file:
            from gpusim.cli import compare_ctas

            return compare_ctas.run(args, gpu)
        plan, measured = _measured(args, gpu)
        comparison = _compare(args, gpu, plan, measured)
    except ValueError as error:
        raise UserError(str(error)) from None
    _write(args, comparison)
    return 0


def _list(name: str, gpu: GpuSpec) -> int:
    from experiments.accuracy.cases import own_cases
    from kernels_cupy.algorithms import kernel_module

    kernel_module(name)
    labels = [case.label for case in own_cases(gpu.name) if case.algorithm == name]
    print("\n".join(labels) or f"no measurement of {name} is stored for {gpu.name}")
    return 0


def _measured(args: argparse.Namespace, gpu: GpuSpec) -> tuple[Plan, Measured]:
    """The plan that ran, and what was measured of it."""
    if args.measurement:
        return _from_file(args, gpu)
    if args.schedule == "best":
        raise UserError("--schedule best looks for tiles that suit a simulated GPU; the kernels have their own")
    from experiments.comparison import stored_measurement
    from kernels_cupy.algorithms import kernel_module, kernels, make_plan
    from kernels_cupy.errors import Unavailable
    from kernels_cupy.gpu import current_gpu

    kernel_module(args.algorithm)  # an unknown name is refused before its problem
    problem = problem_from(args, args.algorithm)
    plan = make_plan(args.algorithm, problem, gpu.sm.count, schedule_settings(args))
    kernels(plan)  # refuses what the kernels do not support
    if not args.stored:
        try:
            card = current_gpu()
        except Unavailable as error:
            missing = str(error)
            if args.live:
                raise UserError(missing) from None
        else:
            if card.sm_count != gpu.sm.count:
                raise UserError(
                    f"this machine's {card.name} has {card.sm_count} SMs but --gpu {args.gpu} has {gpu.sm.count}; "
                    "choose the GPU that it is, or --stored"
                )
            return plan, _live(args, plan)
    found = stored_measurement(plan, args.l2, gpu.name)
    if found is None:
        why = "" if args.stored else f"{missing}, and "
        raise UserError(
            f"{why}no measurement of {args.algorithm} with this problem, schedule and --l2 {args.l2} is stored for "
            f"{gpu.name} (--list shows those that are): run `gpusim run {args.algorithm} --counters --json run.json` "
            "with the same options on a machine with a GPU, and give the file with --measurement run.json"
        )
    return plan, found


def _live(args: argparse.Namespace, plan: Plan) -> Measured:
    from experiments.comparison import from_measurement
    from kernels_cupy.errors import Unavailable
    from kernels_cupy.measure import measure

    if not args.quiet:
        print(f"measuring {plan.algorithm} …", file=sys.stderr, flush=True)
    try:
        measurement = measure(plan, l2=args.l2, repeat=args.repeat, count=True)
    except Unavailable as error:
        raise UserError(str(error)) from None
    return from_measurement(measurement.to_dict(), f"now, on {measurement.gpu}")


def _from_file(args: argparse.Namespace, gpu: GpuSpec) -> tuple[Plan, Measured]:
    """Plan and counters from a file of `gpusim run`; the state of the L2 is the file's."""
    from experiments.comparison import from_measurement
    from kernels_cupy.algorithms import make_plan
    from traces.problem import AttentionProblem

    given = given_problem_or_schedule(args)
    if given:
        raise UserError(f"--measurement has its problem and schedule in the file; leave out {', '.join(given)}")
    said = _read(Path(args.measurement))
    if said["algorithm"] != args.algorithm:
        raise UserError(f"--measurement {args.measurement} is of {said['algorithm']}, not of {args.algorithm}")
    shape = {key: tuple(v) if isinstance(v, list) else v for key, v in said["problem"].items()}
    plan = make_plan(args.algorithm, AttentionProblem.from_dict(shape), gpu.sm.count, said["schedule"])
    args.l2 = said["l2"]
    return plan, from_measurement(said, args.measurement)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--measurement {path} cannot be read as JSON: {error}") from None
    wanted = ("algorithm", "problem", "schedule", "l2", "kernels")
    if not isinstance(said, dict) or any(key not in said for key in wanted):
        raise UserError(f"--measurement {path} is not a result of gpusim run --json, which has {', '.join(wanted)}")
    return said


def _compare(args: argparse.Namespace, gpu: GpuSpec, plan: Plan, measured: Measured) -> dict[str, Any]:
    from experiments.comparison import compare
    from gpusim.cli.progress import Progress
    from gpusim.machine import simulate
    from gpusim.plans import check_fits

    check_fits(plan, gpu)
    with Progress(plan.algorithm, 100, "%", args.quiet) as progress:
        result = simulate(plan, gpu, args.l2, progress=progress)
    return compare(measured, result, plan)


def _write(args: argparse.Namespace, comparison: dict[str, Any]) -> None:
    from gpusim.cli.outputs import emit_json
    from gpusim.report.comparison import render_page, render_text

    if args.json != "-":
        sys.stdout.write(render_text(comparison))
        sys.stdout.flush()
    if args.json:
        emit_json([comparison], args.json)
    if args.html:
        atomic_write(args.html, render_page(comparison))
    if not args.quiet:
        for path in (args.json, args.html):
            if path not in (None, "-"):
                print(f"wrote {path}", file=sys.stderr)
