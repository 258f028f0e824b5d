"""Kernels, measured and simulated, and the statistics of their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments.accuracy.cases import Case
from experiments.accuracy.quantities import SMALL_LIMIT, TARGETS, Quantity, Target
from experiments.accuracy.simulated import Kernel, Stored

__all__ = ["Row", "Statistics", "groups", "paired", "rows_of", "statistics", "worst"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel.

    Attributes:
        case: where it belongs.
        kernel: its name as simulated.
        measured, simulated: values by field.
    """

    case: Case
    kernel: str
    measured: Mapping[str, float]
    simulated: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.case.label} {self.kernel}"

    def error(self, quantity: Quantity) -> float | None:
        """In the quantity's `error_unit`, signed; None where it says nothing."""
        return quantity.error(self.measured[quantity.field], self.simulated[quantity.field])

    def difference(self, quantity: Quantity) -> float | None:
        """In the quantity's `unit`, where the measured value is too small for a percentage."""
        return quantity.difference(self.measured[quantity.field], self.simulated[quantity.field])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Errors of one quantity over some rows.

    Attributes:
        quantity: of what.
        count: rows with an error.
        mean, largest: of the absolute errors (the mean is MAPE where they are percentages); None without rows.
        bias: mean of the signed errors.
        correlation: Pearson's, of measured and simulated; None where it says nothing.
        small: rows too small for a percentage.
        small_largest: largest absolute difference among those, in the quantity's `unit`.
    """

    quantity: Quantity
    count: int
    mean: float | None
    largest: float | None
    bias: float | None
    correlation: float | None
    small: int
    small_largest: float | None

    def meets(self, target: Target | None) -> bool | None:
        """Whether the errors are within the target; None without a target or without rows."""
        if target is None or (self.mean is None and not self.small):
            return None
        parts = [self.mean is None or self.mean <= target.mean]
        if target.largest is not None:
            parts.append(self.largest is None or self.largest <= target.largest)
        if self.small and self.quantity.field.startswith("dram"):
            parts.append(self.small_largest is not None and self.small_largest <= SMALL_LIMIT)
        return all(parts)


def paired(case: Case, kernels: Sequence[Kernel]) -> list[Row]:
    """The rows of a measured case.

    Raises:
        ValueError: another number of kernels was measured than simulated.
    """
    if len(kernels) != len(case.measured):
        raise ValueError(f"{case.label}: {len(kernels)} kernels simulated, {len(case.measured)} measured")
    return [Row(case, k.name, m, k.values) for k, m in zip(kernels, case.measured, strict=True)]


def rows_of(cases: Iterable[Case], stored: Stored) -> list[Row]:
    """Rows of the measured cases whose simulation is stored."""
    chosen = [case for case in cases if case.measured and (case.suite, case.label) in stored]
    return [row for case in chosen for row in paired(case, stored[case.suite, case.label])]


def statistics(rows: Sequence[Row], quantity: Quantity) -> Statistics:
    """Over all rows."""
    errors = [e for row in rows if (e := row.error(quantity)) is not None]
    small = [abs(d) for row in rows if (d := row.difference(quantity)) is not None]
    field = quantity.field
    pairs = [(row.measured[field], row.simulated[field]) for row in rows if not math.isnan(row.measured[field])]
    return Statistics(
        quantity,
        len(errors),
        fmean(map(abs, errors)) if errors else None,
        max(map(abs, errors)) if errors else None,
        fmean(errors) if errors else None,
        _correlation(pairs),
        len(small),
        max(small) if small else None,
    )


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    from statistics import StatisticsError, correlation

    try:
        return correlation([x for x, _ in pairs], [y for _, y in pairs])
    except StatisticsError:
        return None


def groups(rows: Sequence[Row], key: Callable[[Row], str]) -> Iterator[tuple[str, list[Row]]]:
    """Rows by `key`, in order of first appearance."""
    for name in dict.fromkeys(key(row) for row in rows):
        yield name, [row for row in rows if key(row) == name]


def worst(rows: Sequence[Row], quantities: Sequence[Quantity], count: int = 10) -> list[tuple[Row, Quantity, float]]:
    """The errors that are largest against their targets , a row once, the worst first."""
    found = []
    for row in rows:
        targets = TARGETS[row.case.suite]
        errors = [(q, e) for q in quantities if q.field in targets and (e := row.error(q)) is not None]
        if errors:
            quantity, error = max(errors, key=lambda pair: abs(pair[1]) / targets[pair[0].field].mean)
            found.append((abs(error) / targets[quantity.field].mean, row, quantity, error))
    found.sort(key=lambda entry: -entry[0])
    return [(row, quantity, error) for _, row, quantity, error in found[:count]]
