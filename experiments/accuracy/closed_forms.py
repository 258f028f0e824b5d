"""The textbook's HBM bytes next to the card's and the simulator's: the tables of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.accuracy.cases import Case
from experiments.accuracy.simulated import Stored
from experiments.accuracy.text import NOTHING, markdown_table
from traces.analytic import textbook, total

__all__ = ["FUSED", "kernel_table", "run_table"]

MB = 1e6
STATES = {"warm": "warm", "cold": "empty", "flush": "emptied before each kernel"}
SUITE_NAMES = {"torch": "PyTorch", "own": "own", "unmeasured": "PyTorch's tiles"}
FUSED = ("cudnn", "cudnn_causal", "flash2", "flash3")
"""Forward passes that never write S."""

KERNEL_TENSORS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "qk": (("Q", "K"), ("S",)),
    "softmax": (("S",), ("P",)),
    "pv": (("P", "V"), ("O",)),
}
"""Kernel of `naive` → tensors that it reads, and writes."""


def run_table(cases: Iterable[Case], stored: Stored, algorithms: Sequence[str]) -> str:
    """HBM bytes of whole runs: closed form, card, simulator, and how far the first and the last are off."""
    head = [
        "kernels",
        "heads × N × d",
        "L2 before",
        "formula MB",
        "card MB",
        "simulated MB",
        "formula off",
        "simulator off",
    ]
    chosen = [case for case in cases if case.algorithm in algorithms and (case.suite, case.label) in stored]
    return markdown_table(head, [_run_cells(case, stored) for case in sorted(chosen, key=_order)])


def _order(case: Case) -> tuple[object, ...]:
    p = case.problem
    return (p.batch * p.heads > 1, case.algorithm, p.batch, p.heads, p.seq, tuple(STATES).index(case.l2), case.suite)


def _run_cells(case: Case, stored: Stored) -> list[str]:
    p, formula = case.problem, total(textbook(case.plan()))
    simulated = sum(_dram(kernel.values) for kernel in stored[case.suite, case.label])
    measured = sum(map(_dram, case.measured)) if case.measured else None
    shape = f"{p.batch * p.heads} × {p.seq} × {p.dim}"
    return [
        f"{case.algorithm}, {SUITE_NAMES[case.suite]}",
        shape,
        STATES[case.l2],
        _mb(formula),
        _mb(measured),
        _mb(simulated),
        _off(formula, measured),
        _off(simulated, measured),
    ]


def kernel_table(cases: Iterable[Case], stored: Stored, labels: Sequence[str]) -> str:
    """HBM reads and writes of each kernel of naive runs: closed form, card, simulator."""
    head = ["run", "kernel", *(f"{what} MB, {who}" for what in ("read", "written") for who in SIDES)]
    lines = []
    for case in cases:
        if case.label in labels and case.suite == "torch" and (case.suite, case.label) in stored:
            lines += _kernel_lines(case, stored)
    return markdown_table(head, lines)


SIDES = ("formula", "card", "simulated")


def _kernel_lines(case: Case, stored: Stored) -> list[list[str]]:
    p, formula = case.problem, textbook(case.plan())
    lines = []
    for kernel, measured in zip(stored[case.suite, case.label], case.measured, strict=True):
        reads, writes = KERNEL_TENSORS[kernel.name]
        read, written = (sum(formula.get(t, (0, 0))[i] for t in names) for i, names in enumerate((reads, writes)))
        cells = [f"{p.batch * p.heads} × {p.seq} × {p.dim}, {STATES[case.l2]}", kernel.name]
        for closed, field in ((read, "dram_read_bytes"), (written, "dram_write_bytes")):
            cells += [_mb(closed), _mb(measured[field]), _mb(kernel.values[field])]
        lines.append(cells)
    return lines


def _dram(values: Mapping[str, float]) -> float:
    return values["dram_read_bytes"] + values["dram_write_bytes"]


def _mb(count: float | None) -> str:
    return NOTHING if count is None else f"{count / MB:,.1f}"


def _off(value: float, measured: float | None) -> str:
    """Error in percent, as a factor where it is large; as MB where the card moved next to nothing."""
    if measured is None:
        return NOTHING
    if measured < MB:
        return f"{(value - measured) / MB:+.1f} MB"
    ratio = value / measured
    return f"{(ratio - 1) * 100:+.1f} %" if ratio < 2 else f"× {ratio:.1f}"
