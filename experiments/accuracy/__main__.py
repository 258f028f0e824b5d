"""Simulate everything that was measured, store the counters, and write the tables of README.md and docs/accuracy.md.

python -m experiments.accuracy                      # everything: `make accuracy`
python -m experiments.accuracy --max-gb 1 --jobs 2  # small runs only; the others stay as they are stored
python -m experiments.accuracy --stored             # only the tables, from what is stored
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from experiments.accuracy.cases import all_cases
from experiments.accuracy.documents import write_documents
from experiments.accuracy.published import Worse, publish
from experiments.accuracy.rows import rows_of
from experiments.accuracy.simulated import read_stored, simulate_cases, write_stored
from experiments.accuracy.text import suite_text

GPU = "h200"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    cases = all_cases()
    if not options.stored:
        chosen = [case for case in cases if options.match in case.label and case.port_bytes <= options.max_gb * 1e9]
        known = {(case.suite, case.label) for case in cases}
        stored = {key: kernels for key, kernels in read_stored(GPU).items() if key in known}
        started = time.perf_counter()
        for number, (case, kernels) in enumerate(simulate_cases(chosen, GPU, processes=options.jobs)):
            stored[case.suite, case.label] = kernels
            write_stored(stored, GPU)
            seconds = time.perf_counter() - started
            print(f"[{number + 1}/{len(chosen)}] {seconds:.0f} s {case.label}", file=sys.stderr, flush=True)
    stored = read_stored(GPU)
    rows = rows_of(cases, stored)
    for suite in dict.fromkeys(row.case.suite for row in rows):
        print(suite_text([row for row in rows if row.case.suite == suite], suite) + "\n")
    try:
        publish(rows, options.accept_worse)
    except Worse as error:
        print(error, file=sys.stderr)
        return 1
    for path in write_documents(cases, stored):
        print(f"wrote {path}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.accuracy", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stored", action="store_true", help="do not simulate")
    parser.add_argument("--max-gb", type=float, default=float("inf"), help="skip runs with more GB at the SM ports")
    parser.add_argument("--match", default="", metavar="TEXT", help="only runs whose label holds TEXT")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--accept-worse", action="store_true", help="publish errors of the gate's runs although they have grown"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
