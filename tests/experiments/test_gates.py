"""Two gates, kept apart. Drift: has any simulated counter moved? Accuracy: have errors against the card grown?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import drift
from experiments.accuracy.cases import Case
from experiments.accuracy.published import SLACK, Figure, Worse, complaints, gate_figures, publish, read_published
from experiments.accuracy.rows import Row, paired
from experiments.accuracy.simulated import Kernel, read_stored

Simulated = list[tuple[Case, tuple[Kernel, ...]]]


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    return drift.simulate_all(drift.gate_cases())


@pytest.fixture(scope="module")
def rows(simulated: Simulated) -> list[Row]:
    return [row for case, kernels in simulated if case.measured for row in paired(case, kernels)]


def test_has_no_counter_drifted(simulated: Simulated) -> None:
    stored = read_stored()
    lines = [line for case, kernels in simulated for line in drift.moved(case, kernels, stored)]
    assert not lines, "\n".join([f"counters moved; if that is intended: {drift.ACCEPT}", *lines])


def test_have_errors_against_the_card_not_grown(rows: list[Row]) -> None:
    grown = complaints(gate_figures(rows), read_published())
    assert not grown, "\n".join(["errors have grown; to publish them: make accuracy, with --accept-worse", *grown])


def changed(case: Case, kernels: tuple[Kernel, ...], field: str, factor: float) -> tuple[Kernel, ...]:
    return tuple(Kernel(k.name, {**k.values, field: k.values[field] * factor}) for k in kernels)


def test_does_the_drift_gate_see_more_than_half_a_percent(simulated: Simulated) -> None:
    case, kernels = simulated[0]
    stored = {(case.suite, case.label): kernels}
    assert drift.moved(case, changed(case, kernels, "cycles", 1.004), stored) == []
    assert len(drift.moved(case, changed(case, kernels, "cycles", 1.006), stored)) == len(kernels)
    assert len(drift.moved(case, changed(case, kernels, "l2_hit_rate", 0.99), stored)) == len(kernels)


def test_does_the_drift_gate_see_other_kernels_and_runs(simulated: Simulated) -> None:
    case, kernels = simulated[0]
    renamed = tuple(replace(k, name="other") for k in kernels)
    assert len(drift.moved(case, renamed, {(case.suite, case.label): kernels})) == 1
    assert len(drift.moved(case, kernels, {})) == 1


def test_does_the_accuracy_gate_see_larger_errors_only() -> None:
    key = ("torch", "cycles")
    published = {key: Figure(3, 5.0, 0, 0.0)}
    assert complaints({key: Figure(3, 4.0, 0, 0.0)}, published) == []
    assert complaints({key: Figure(3, 5.0 + SLACK / 2, 0, 0.0)}, published) == []
    assert len(complaints({key: Figure(3, 5.0 + 2 * SLACK, 0, 0.0)}, published)) == 1
    small = {key: Figure(3, 5.0, 1, 0.2)}
    assert len(complaints({key: Figure(3, 5.0, 1, 0.2 + 2 * SLACK)}, small)) == 1


def test_are_larger_errors_published_only_on_purpose(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    publish(rows, path=path)
    worse = [replace(row, simulated={**row.simulated, "cycles": 2 * row.measured["cycles"]}) for row in rows]
    with pytest.raises(Worse, match=r"torch cycles: mean error 100\.00"):
        publish(worse, path=path)
    publish(worse, accept_worse=True, path=path)
    assert read_published(path)["torch", "cycles"].mean == pytest.approx(100)
