"""`gpusim calibrate`: measures this machine's GPU, or reads a folder measured elsewhere, and writes a GPU file."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpusim.cli.options import atomic_write, check_file
from gpusim.errors import UserError
from gpusim.spec import GpuSpec, load_gpu, preset_names

if TYPE_CHECKING:
    from experiments.calibration.fits import Fitted
    from experiments.calibration.folder import Measurements
    from experiments.calibration.preset import Preset

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim calibrate`."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE.toml", help="the GPU file to write")
    parser.add_argument(
        "--measurements",
        metavar="FOLDER",
        help="read what python -m kernels_cupy.calibrate -o FOLDER measured; without it, measure this machine's GPU "
        "into the folder called as FILE.toml, without its suffix",
    )
    parser.add_argument("--name", help="name of the GPU (default: as FILE.toml)")
    parser.add_argument(
        "--base",
        default="",
        metavar="NAME|FILE.toml",
        help="GPU that has what was not measured (default: a preset of the same compute capability)",
    )
    parser.add_argument(
        "--no-fit", action="store_true", help="leave out figures that are fitted by simulating (some minutes)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the report as well as printing it")
    parser.add_argument("--quiet", action="store_true", help="no progress and no remarks on standard error")


def run(args: argparse.Namespace) -> int:
    """Measure unless a folder is given, derive and fit the figures, and write the GPU file.

    Raises:
        UserError: bad input or no GPU to measure; nothing is written then but measurements.
    """
    output = Path(args.output)
    name = _checked(args, output)
    if args.base:
        load_gpu(args.base)

    from experiments.calibration.folder import open_folder
    from experiments.calibration.preset import derive_preset
    from experiments.calibration.report import report_text

    folder = Path(args.measurements) if args.measurements else _measured(output.with_suffix(""), args.quiet)
    measurements = open_folder(folder)
    preset = derive_preset(measurements, name, args.base)
    _loaded(preset)
    fitted: Sequence[Fitted] = ()
    if not args.no_fit:
        preset, fitted = _fitted(preset, measurements, args.quiet)
    text = report_text(preset, measurements, fitted)
    atomic_write(args.output, preset.to_toml())
    if args.report:
        atomic_write(args.report, text)
    print(text, end="", flush=True)
    if not args.quiet:
        beside = "" if folder == output.with_suffix("") else f" --measurements {folder}"
        print(f"wrote {args.output}; gpusim validate --gpu {args.output}{beside} tests it", file=sys.stderr)
    return 0


def _checked(args: argparse.Namespace, output: Path) -> str:
    """The GPU's name, after a look at everything that can be wrong with the options."""
    if output.suffix != ".toml":
        raise UserError(f"--output {args.output} must end in .toml, as GPU files do")
    check_file("--output", output)
    if args.report:
        check_file("--report", Path(args.report))
        if Path(args.report).resolve() == output.resolve():
            raise UserError(f"--report {args.report} is already the target of --output")
    name: str = args.name or output.stem
    if name.lower() in preset_names():
        option = "--name" if args.name else "--output"
        raise UserError(
            f"{option} {args.name or args.output} is the name of a GPU that comes with gpusim; give another"
        )
    return name


def _measured(folder: Path, quiet: bool) -> Path:
    """The folder, filled by this machine's GPU."""
    from kernels_cupy.calibrate import measure_all
    from kernels_cupy.errors import Unavailable

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    try:
        measure_all(folder, say)
    except Unavailable as error:
        raise UserError(f"{error}; or bring measurements along with --measurements FOLDER") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return folder


def _loaded(preset: Preset) -> GpuSpec:
    """The GPU that the file will describe; UserError if it cannot be one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{preset.name}.toml")
        path.write_text(preset.to_toml(), encoding="utf-8")
        return load_gpu(path)


def _fitted(preset: Preset, measurements: Measurements, quiet: bool) -> tuple[Preset, Sequence[Fitted]]:
    """The preset with fitted figures, and how they were found."""
    from experiments.calibration.fits import fits_for, run_fit
    from gpusim.cli.progress import Progress

    found: list[Fitted] = []
    for fit in fits_for(measurements, _loaded(preset)):
        with Progress(f"fitting {fit.key}", len(fit.values), "values", quiet) as progress:
            fitted = run_fit(fit, measurements.folder, _loaded(preset), progress)
        preset = preset.with_figures([fitted.figure])
        found.append(fitted)
    return preset, found
