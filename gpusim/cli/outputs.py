"""Writes finished simulations to the places that the output options name."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim.cli.options import atomic_write
from gpusim.errors import UserError

if TYPE_CHECKING:
    from traces.launch import Plan

__all__ = ["emit_json", "write_outputs"]

Results = Sequence[dict[str, Any]]


def write_outputs(args: argparse.Namespace, results: Results, plans: Sequence[Plan]) -> None:
    """The table on standard output, and every file that was asked for, each complete or not there.

    With `--json -`, the JSON is alone on standard output, and there is no table.

    Raises:
        UserError: a file cannot be written.
    """
    plain = [_finite(result) for result in results]
    if args.json != "-":
        from gpusim.report.table import render

        sys.stdout.write(render(plain))
        sys.stdout.flush()
    if args.json:
        emit_json(plain, args.json)
    written = [args.json] if args.json not in (None, "-") else []
    if args.html:
        from gpusim.report.html import render_page

        atomic_write(args.html, render_page(plain))
        written.append(args.html)
    if args.perfetto:
        from gpusim.report.perfetto import write_trace

        try:
            write_trace(plain, args.perfetto)
        except OSError as error:
            raise UserError(f"{args.perfetto} cannot be written: {error.strerror or error}") from None
        written.append(args.perfetto)
    if args.save:
        written += _save(Path(args.save), plain, plans)
    if not args.quiet:
        for path in written:
            print(f"wrote {path}", file=sys.stderr)


def emit_json(results: Results, target: str) -> None:
    """One result as an object, several as a list, to a file or (`-`) to standard output. Infinities become null."""
    plain = [_finite(result) for result in results]
    text = json.dumps(plain[0] if len(plain) == 1 else plain, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        atomic_write(target, text)


def _save(folder: Path, results: Results, plans: Sequence[Plan]) -> list[str]:
    """`result.json`, `report.txt`, and for each algorithm its trace, `ALGO.parquet`."""
    from gpusim.report.table import render
    from traces.record import record

    result, report = folder / "result.json", folder / "report.txt"
    traces = {folder / f"{plan.algorithm}.parquet": plan for plan in plans}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        emit_json(results, str(result))
        atomic_write(report, render(results))
        for path, plan in traces.items():
            record(plan, path)
    except OSError as error:
        raise UserError(f"--save {folder} cannot be written: {error.strerror or error}") from None
    return [str(path) for path in (result, report, *traces)]


def _finite(value: Any) -> Any:
    """`value` with None for the numbers that JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
