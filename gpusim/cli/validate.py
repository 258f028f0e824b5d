"""`gpusim validate`: simulates what was measured on real cards, and says how far apart the two are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpusim.cli.options import add_machine_options, atomic_write, check_file, gpu_from, whole
from gpusim.errors import UserError

if TYPE_CHECKING:
    from gpusim.spec import GpuSpec

__all__ = ["add_arguments", "run"]

MICRO = "micro"
SUITES = (MICRO, "torch", "own")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim validate`."""
    parser.add_argument(
        "--suite",
        choices=SUITES,
        default=MICRO,
        help="what to compare: micro-benchmarks (default), PyTorch's attention kernels, this project's own",
    )
    add_machine_options(parser, l2=False)
    parser.add_argument(
        "--only", default="", metavar="NAME", help="only curves or runs whose name holds NAME, such as latency"
    )
    parser.add_argument(
        "--measurements",
        metavar="FOLDER",
        help="compare with what python -m kernels_cupy.calibrate measured (default: what is committed for the GPU's "
        "name, or the folder that gpusim calibrate left beside --gpu FILE.toml)",
    )
    group = parser.add_argument_group("attention kernels (--suite torch and own)")
    group.add_argument("--stored", action="store_true", help="show the committed simulations instead of simulating")
    group.add_argument(
        "--max-gb", type=float, default=None, metavar="GB", help="skip runs that move more at the SM ports"
    )
    group.add_argument("--jobs", type=whole, default=None, metavar="N", help="processes (default 1)")
    group = parser.add_argument_group("output")
    group.add_argument("--html", metavar="FILE", help="write a page of plots")
    group.add_argument("--csv", metavar="FILE", help="write a line per point")
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on standard error")


def run(args: argparse.Namespace) -> int:
    """Simulate the suite; print every curve or table, then a summary.

    Raises:
        UserError: bad input, found before anything is simulated.
    """
    outputs = {name: target for name in ("html", "csv") if (target := getattr(args, name))}
    for name, target in outputs.items():
        check_file(f"--{name}", Path(target))
    if args.html and args.csv and Path(args.html).resolve() == Path(args.csv).resolve():
        raise UserError(f"--csv {args.csv} is already the target of --html")
    gpu = gpu_from(args)
    text, page, table = _micro(args, gpu) if args.suite == MICRO else _attention(args, gpu)
    print(text, flush=True)
    if args.html:
        atomic_write(args.html, page())
    if args.csv:
        atomic_write(args.csv, table())
    for target in outputs.values():
        if not args.quiet:
            print(f"wrote {target}", file=sys.stderr)
    return 0


Shown = tuple[str, Callable[[], str], Callable[[], str]]
"""What is printed, and what makes the page and the CSV file."""


def _micro(args: argparse.Namespace, gpu: GpuSpec) -> Shown:
    """Micro-benchmarks, curve by curve."""
    for name in ("stored", "max_gb", "jobs"):
        if getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')} is for --suite torch and own")

    from experiments.validation.page import render_page
    from experiments.validation.suite import run_suite, studies_for
    from experiments.validation.text import curve_text, summary_text, to_csv
    from gpusim.cli.progress import Progress

    folder = _folder(args, gpu)
    studies = studies_for(gpu, args.only, folder)
    with Progress(f"{args.suite} on {gpu.name}", len(studies), "studies", args.quiet) as progress:
        curves = run_suite(gpu, args.only, progress, folder)
    if not curves:
        raise UserError(
            f"--measurements {folder} has nothing measured that can be simulated, of {args.only or 'any curve'}"
        )
    text = "\n\n".join(curve_text(curve) for curve in curves)
    text += f"\n\n{gpu.name}: {summary_text(curves)}"
    return text, lambda: render_page(curves, gpu.name, args.suite), lambda: to_csv(curves)


def _folder(args: argparse.Namespace, gpu: GpuSpec) -> Path | None:
    """The measurements to compare with; None for those that are committed."""
    if args.measurements:
        from experiments.calibration.folder import DEVICE, open_folder

        given = Path(args.measurements)
        if not given.is_dir() or (given / DEVICE).is_file():
            return open_folder(given).folder
        return given  # measured one by one, as the committed curves of the H200 were
    from experiments.validation.suite import CARDS

    beside = Path(args.gpu).with_suffix("")
    calibrated = args.gpu.endswith(".toml") and (beside / "device.json").is_file()
    return beside if calibrated and gpu.name not in CARDS else None


def _attention(args: argparse.Namespace, gpu: GpuSpec) -> Shown:
    """Attention kernels, one by one."""
    if args.measurements:
        raise UserError("--measurements is for --suite micro")

    from experiments.accuracy.cases import all_cases
    from experiments.accuracy.page import render_page
    from experiments.accuracy.quantities import SUITES as TITLES
    from experiments.accuracy.rows import paired, rows_of
    from experiments.accuracy.simulated import read_stored, simulate_cases
    from experiments.accuracy.text import suite_text, to_csv
    from gpusim.cli.progress import Progress

    if args.stored and (args.overrides or args.jobs):
        raise UserError(
            f"--stored shows what was simulated before; leave out {'--set' if args.overrides else '--jobs'}"
        )
    most = float("inf") if args.max_gb is None else args.max_gb * 1e9
    measured = all_cases((args.suite,), gpu.name)
    if not measured:
        raise UserError(
            f"no {TITLES[args.suite]} are measured on {gpu.name} (experiments/measured/{gpu.name} has no such file)"
        )
    cases = [case for case in measured if args.only in case.label and case.port_bytes <= most]
    if args.stored:
        rows = rows_of(cases, read_stored(gpu.name))
    else:
        rows = []
        with Progress(f"{args.suite} on {gpu.name}", len(cases), "runs", args.quiet) as progress:
            for number, (case, kernels) in enumerate(
                simulate_cases(cases, args.gpu, args.overrides, args.jobs or 1), 1
            ):
                rows += paired(case, kernels)
                progress(number / len(cases))
    if not rows:
        raise UserError("no measured run is left by --only, --max-gb and --stored")
    title = f"{gpu.name}, {TITLES[args.suite]}"
    subtitle = f"{len(rows)} kernels of {len({row.case.label for row in rows})} runs"
    return suite_text(rows, title), lambda: render_page(rows, f"Accuracy on {title}", subtitle), lambda: to_csv(rows)
