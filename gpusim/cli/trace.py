"""`gpusim trace ALGO -o FILE`: writes what an algorithm does, operation by operation, to a trace file."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusim.cli.options import (
    add_machine_options,
    add_problem_options,
    add_schedule_options,
    check_file,
    gpu_from,
    plan_from,
    problem_from,
)
from gpusim.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim trace`."""
    parser.add_argument("algorithm", metavar="ALGO", help="what to record (see gpusim algorithms)")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file, .parquet or .npz")
    add_problem_options(parser)
    add_machine_options(parser, l2=False)
    add_schedule_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def run(args: argparse.Namespace) -> int:
    """Record the algorithm's plan for this problem and GPU; the file appears once it is complete.

    Raises:
        UserError: bad input, or the file cannot be written.
    """
    path = Path(args.output)
    check_file("-o", path)
    from gpusim.cli.progress import Progress
    from traces.record import record
    from traces.tracefile import read

    plan = plan_from(args, args.algorithm, problem_from(args, args.algorithm), gpu_from(args))
    try:
        with Progress(args.algorithm, sum(launch.ctas for launch in plan.launches), "CTAs", args.quiet) as progress:
            record(plan, path, lambda done, total: progress(done / total))
        tables = read(path)[1]
    except ValueError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    if not args.quiet:
        rows = {name: len(table.ints["program"]) for name, table in tables.items()}
        counts = ", ".join(
            f"{count:,} {name if count != 1 else name.removesuffix('s')}" for name, count in rows.items()
        )
        print(f"wrote {path}: {counts}, {path.stat().st_size:,} bytes")
    return 0
