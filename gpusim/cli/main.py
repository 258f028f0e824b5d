"""Entry point: finds the command, imports its module alone, and turns bad input into one sentence and exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from gpusim.errors import UserError

__all__ = ["COMMANDS", "main"]

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("simulate", "simulate attention algorithms on a GPU", "gpusim.cli.simulate"),
    ("run", "run the CUDA kernels of an algorithm on this machine's GPU", "gpusim.cli.run"),
    ("compare", "compare the measured kernels of an algorithm with their simulation", "gpusim.cli.compare"),
    ("validate", "compare simulations with what was measured on real cards", "gpusim.cli.validate"),
    ("calibrate", "measure a GPU with micro-benchmarks, and write a GPU file", "gpusim.cli.calibrate"),
    ("gpus", "list the GPUs, or show and compare their figures", "gpusim.cli.gpus"),
    ("algorithms", "list the algorithms and their schedule keys", "gpusim.cli.algorithms"),
    ("trace", "write the tile operations of an algorithm to a file", "gpusim.cli.trace"),
    ("report", "turn a saved result into an HTML report", "gpusim.cli.report"),
)
"""Name, one-line help and module of every command. The module has `add_arguments(parser)` and `run(args) -> int`."""

BAD_INPUT = 2
INTERRUPTED = 130


class Command(Protocol):
    """What the module of a command provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `UserError`s instead of a usage dump and an exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit status."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"gpusim: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("gpusim: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; keep the interpreter from complaining as it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _top_level(arguments)
    name = arguments[0]
    for command, summary, module in COMMANDS:
        if command == name:
            implementation = cast(Command, import_module(module))
            parser = Parser(prog=f"gpusim {name}", description=_sentence(summary), allow_abbrev=False)
            implementation.add_arguments(parser)
            return implementation.run(_parse(parser, arguments[1:]))
    names = [command for command, _, _ in COMMANDS]
    raise UserError(f"command {name!r} is not one of {', '.join(names)}{_near(name, names)}")


def _top_level(arguments: list[str]) -> int:
    parser = Parser(
        prog="gpusim",
        usage="gpusim [--version] COMMAND ...",
        description="Cycle-level simulator of a GPU's memory hierarchy for attention kernels.",
        epilog="commands:\n" + "".join(f"  {name:12}{summary}\n" for name, summary, _ in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    if _parse(parser, arguments).version:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"gpusim {version('gpusim')}")
        except PackageNotFoundError:
            print("gpusim (a checkout that is not installed)")
    else:
        parser.print_help()
    return 0


def _parse(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """Like `parse_args`, with a suggestion for a mistyped option."""
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        options = [text for action in parser._actions for text in action.option_strings]
        word = unknown[0].partition("=")[0]
        kind = "option" if word.startswith("-") else "argument"
        parser.error(f"{kind} {word!r} is not known{_near(word, options) if kind == 'option' else ''}")
    return args


def _near(word: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."
