"""The parts of README.md and docs/accuracy.md that are written by code, between markers.

<!-- written by make accuracy: errors -->
…
<!-- end: errors -->
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.accuracy.cases import Case
from experiments.accuracy.closed_forms import FUSED, kernel_table, run_table
from experiments.accuracy.rows import Row, groups, rows_of
from experiments.accuracy.simulated import Stored
from experiments.accuracy.text import GROUP_HEAD, LEGEND, WORST_HEAD, group_cells, markdown, markdown_table, worst_cells

__all__ = ["DOCUMENTS", "filled", "write_documents"]

ROOT = Path(__file__).parents[2]
BY_KERNEL = ("naive B1_H1_N4096_d128 warm", "naive B1_H1_N8192_d128 warm", "naive B1_H16_N4096_d64 warm")

Block = Callable[[Sequence[Case], Stored], str]


def _errors(cases: Sequence[Case], stored: Stored) -> str:
    measured = Counter(case.suite for case in cases if case.measured)
    return f"{LEGEND}\n\n{markdown(rows_of(cases, stored), measured)}"


def _by_group(cases: Sequence[Case], stored: Stored) -> str:
    return _per_suite(rows_of(cases, stored), lambda rows: markdown_table(GROUP_HEAD, group_cells(rows)))


def _worst(cases: Sequence[Case], stored: Stored) -> str:
    return _per_suite(rows_of(cases, stored), lambda rows: markdown_table(WORST_HEAD, worst_cells(rows)))


def _of_interest(cases: Sequence[Case]) -> list[Case]:
    """All but the runs that only watch for drift."""
    return [case for case in cases if case.suite != "drift"]


def _per_suite(rows: Sequence[Row], table: Callable[[Sequence[Row]], str]) -> str:
    return "\n\n".join(table(members) for _, members in groups(rows, lambda row: row.case.suite))


DOCUMENTS: Mapping[str, Mapping[str, Block]] = {
    "README.md": {"errors": _errors},
    "docs/accuracy.md": {
        "errors": _errors,
        "groups": _by_group,
        "worst": _worst,
        "naive": lambda cases, stored: run_table(_of_interest(cases), stored, ("naive",)),
        "kernels": lambda cases, stored: kernel_table(cases, stored, BY_KERNEL),
        "fused": lambda cases, stored: run_table(_of_interest(cases), stored, FUSED),
    },
}
"""Document → name of each of its written parts → what makes it."""


def filled(document: str, cases: Sequence[Case], stored: Stored) -> str:
    """The text of a document with all of its written parts made anew.

    Raises:
        ValueError: a marker is missing.
    """
    text = (ROOT / document).read_text()
    for name, block in DOCUMENTS[document].items():
        begin, end = f"<!-- written by make accuracy: {name} -->", f"<!-- end: {name} -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{document} has no lines {begin!r} and {end!r}")
        text = f"{before}{begin}\n\n{block(cases, stored)}\n\n{end}{after}"
    return text


def write_documents(cases: Sequence[Case], stored: Stored) -> list[str]:
    """Bring every document up to date; the names of those that changed."""
    changed = []
    for document in DOCUMENTS:
        text = filled(document, cases, stored)
        if text != (ROOT / document).read_text():
            (ROOT / document).write_text(text)
            changed.append(document)
    return changed
