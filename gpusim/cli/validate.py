"""`gpusim validate`: simulates what was measured on real cards, and says how far apart the two are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpusim.cli.options import add_machine_options, atomic_write, check_file, gpu_from
from gpusim.errors import UserError

__all__ = ["add_arguments", "run"]

SUITES = ("micro",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim validate`."""
    parser.add_argument("--suite", choices=SUITES, default="micro", help="what to compare: micro-benchmarks (default)")
    add_machine_options(parser, l2=False)
    parser.add_argument("--only", default="", metavar="NAME", help="only curves whose name holds NAME, such as latency")
    group = parser.add_argument_group("output")
    group.add_argument("--html", metavar="FILE", help="write a page of plots")
    group.add_argument("--csv", metavar="FILE", help="write a line per point")
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on standard error")


def run(args: argparse.Namespace) -> int:
    """Simulate the suite; print every curve, then a summary.

    Raises:
        UserError: bad input, found before anything is simulated.
    """
    outputs = {name: target for name in ("html", "csv") if (target := getattr(args, name))}
    for name, target in outputs.items():
        check_file(f"--{name}", Path(target))
    if args.html and args.csv and Path(args.html).resolve() == Path(args.csv).resolve():
        raise UserError(f"--csv {args.csv} is already the target of --html")
    gpu = gpu_from(args)

    from experiments.validation.suite import run_suite, studies_for
    from experiments.validation.text import curve_text, summary_text, to_csv
    from gpusim.cli.progress import Progress

    studies = studies_for(gpu, args.only)
    with Progress(f"{args.suite} on {gpu.name}", len(studies), "studies", args.quiet) as progress:
        curves = run_suite(gpu, args.only, progress)
    print("\n\n".join(curve_text(curve) for curve in curves))
    print(f"\n{gpu.name}: {summary_text(curves)}", flush=True)
    if args.html:
        from experiments.validation.page import render_page

        atomic_write(args.html, render_page(curves, gpu.name, args.suite))
    if args.csv:
        atomic_write(args.csv, to_csv(curves))
    for target in outputs.values():
        if not args.quiet:
            print(f"wrote {target}", file=sys.stderr)
    return 0
