"""`gpusim compare ALGO --ctas FILE`: when and where the CTAs of a measured run ran, next to the same run simulated."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpusim.cli.options import given_problem_or_schedule
from gpusim.cli.outputs import emit_json
from gpusim.cli.progress import Progress
from gpusim.errors import UserError
from gpusim.spec import GpuSpec

__all__ = ["run"]


def run(args: argparse.Namespace, gpu: GpuSpec) -> int:
    """Simulate what the file says has run, and show both.

    Raises:
        UserError: bad input.
        ValueError: the file is no file of CTA times, or its launches are not those of the simulated plan.
    """
    from experiments.cta_comparison import compare_ctas
    from gpusim.machine import simulate
    from gpusim.plans import check_fits, make_plan
    from gpusim.report.cta_comparison import render_text
    from kernels_cupy.cta_file import read_ctas

    given = given_problem_or_schedule(args)
    if given:
        raise UserError(f"--ctas has its problem and schedule in the file; leave out {', '.join(given)}")
    if args.html:
        raise UserError(f"--html {args.html}: there is no page of CTAs; leave it out with --ctas")
    measured = read_ctas(Path(args.cta_file))
    if measured.algorithm != args.algorithm:
        raise UserError(f"--ctas {args.cta_file} is of {measured.algorithm}, not of {args.algorithm}")
    plan = make_plan(args.algorithm, measured.problem, gpu, measured.schedule)
    check_fits(plan, gpu)
    with Progress(plan.algorithm, 100, "%", args.quiet) as progress:
        result = simulate(plan, gpu, measured.l2, progress=progress, record_ctas=True)
    simulated = [kernel.cta_times for kernel in result.kernels if kernel.cta_times]
    said = result.to_dict()
    comparison = {
        **{key: said[key] for key in ("gpu", "algorithm", "problem", "schedule", "l2")},
        "source": args.cta_file,
        "provenance": dict(measured.provenance),
        "kernels": compare_ctas(measured.launches, simulated),
    }
    if args.json != "-":
        sys.stdout.write(render_text(comparison))
        sys.stdout.flush()
    if args.json:
        emit_json([comparison], args.json)
        if args.json != "-" and not args.quiet:
            print(f"wrote {args.json}", file=sys.stderr)
    return 0
