"""`gpusim report RESULT...`: stored results as a table, an HTML page, or a Perfetto trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpusim.errors import UserError

__all__ = ["add_arguments", "load", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gpusim report`."""
    parser.add_argument(
        "results", nargs="+", metavar="RESULT", help="JSON file of `--json`: one result or a list ('-': standard input)"
    )
    parser.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev")


def run(args: argparse.Namespace) -> int:
    """Write the files asked for, or print the table when none is.

    Raises:
        UserError: a file is missing, is not a result, or cannot be written.
    """
    results = load(args.results)
    if args.html:
        from gpusim.report.html import write_report

        _write(write_report, results, args.html)
    if args.perfetto:
        from gpusim.report.perfetto import write_trace

        _write(write_trace, results, args.perfetto)
    if not (args.html or args.perfetto):
        from gpusim.report.table import render

        sys.stdout.write(render(results))
    return 0


def load(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The results in all files, in order.

    Raises:
        UserError: the first file that is missing or malformed.
    """
    from gpusim.report.fields import check

    results: list[dict[str, Any]] = []
    for path in paths:
        content = _read(path)
        listed = isinstance(content, list)
        if listed and not content:
            raise UserError(f"{path} holds an empty list, not a result")
        for index, one in enumerate(content if listed else [content]):
            results.append(dict(check(one, f"{path}: result {index}" if listed else str(path))))
    return results


def _read(path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a JSON file: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not a JSON file: {error.msg} at line {error.lineno}") from None


def _write(write: Callable[[list[dict[str, Any]], str], None], results: list[dict[str, Any]], path: str) -> None:
    try:
        write(results, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    print(f"wrote {path}", file=sys.stderr)
