"""Runs an algorithm's CUDA kernels on a machine that has only NumPy and CuPy; `gpusim run` has more options.

python -m kernels_cupy naive --heads 32 --seq 4096 --dim 128 --causal --verify
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from kernels_cupy.command import add_run_options, execute, print_json
from kernels_cupy.errors import CompileError, Unavailable
from traces.algorithms import default_shape
from traces.problem import AttentionProblem

BAD_INPUT = 2


def whole(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def check_outputs(args: argparse.Namespace) -> None:
    """ValueError, in one sentence, if a file that was asked for could not be written."""
    for option in ("json", "ctas", "stamps"):
        target = getattr(args, option)
        if target is None or (option, target) == ("json", "-"):
            continue
        path = Path(target)
        if path.is_dir():
            raise ValueError(f"--{option} {path} is a folder, not a file")
        if not path.parent.is_dir():
            raise ValueError(f"--{option} {path}: folder {path.parent} does not exist")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"--{option} {path} cannot be written")


def main() -> int:
    """Parse, run, and turn bad input into one sentence and exit status 2."""
    parser = argparse.ArgumentParser(prog="python -m kernels_cupy", description="Run attention kernels on this GPU.")
    add_run_options(parser, whole)
    parser.add_argument("--json", metavar="FILE|-", help="write the result as JSON (- is standard output)")
    parser.add_argument(
        "--set-schedule", action="append", default=[], metavar="KEY=VALUE", help="a schedule key (repeatable)"
    )
    shape = [f for f in fields(AttentionProblem) if isinstance(f.default, bool | int | str)]
    for f in shape:
        option = f"--{f.name.replace('_', '-')}"
        if isinstance(f.default, bool):
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=whole if isinstance(f.default, int) else str)
    args = parser.parse_args()

    def write(path: str, text: str) -> None:
        Path(path).write_text(text)

    def write_json(result: dict[str, Any]) -> None:
        import json

        write(args.json, json.dumps(result) + "\n")

    try:
        if not args.compile:
            check_outputs(args)
        given = {f.name: value for f in shape if (value := getattr(args, f.name)) is not None}
        problem = AttentionProblem(**(default_shape(args.algorithm) | given))
        schedule = dict(setting.partition("=")[::2] for setting in args.set_schedule)
        return execute(args, problem, schedule, print_json if args.json == "-" else write_json, write)
    except (ValueError, Unavailable, CompileError) as error:
        print(f"kernels_cupy: error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
