"""Do README and docs/accuracy.md say what is stored?"""

from __future__ import annotations

import pytest

from experiments.accuracy.cases import Case, all_cases
from experiments.accuracy.documents import DOCUMENTS, ROOT, filled
from experiments.accuracy.published import gate_figures, read_published
from experiments.accuracy.rows import rows_of
from experiments.accuracy.simulated import Stored, read_stored


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return all_cases()


@pytest.fixture(scope="module")
def stored() -> Stored:
    return read_stored()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_agrees_the_document_with_what_is_stored(document: str, cases: list[Case], stored: Stored) -> None:
    assert (ROOT / document).read_text() == filled(document, cases, stored), (
        f"{document} is out of date: python -m experiments.accuracy --stored writes it"
    )


def test_is_everything_stored_known(cases: list[Case], stored: Stored) -> None:
    assert set(stored) <= {(case.suite, case.label) for case in cases}


def test_are_labels_unique(cases: list[Case]) -> None:
    assert len({(case.suite, case.label) for case in cases}) == len(cases)


def test_are_the_published_errors_those_of_what_is_stored(cases: list[Case], stored: Stored) -> None:
    figures, published = gate_figures(rows_of(cases, stored)), read_published()
    assert set(figures) == set(published)
    for key, figure in figures.items():
        assert published[key].mean == pytest.approx(figure.mean, abs=5e-4), key
        assert (published[key].kernels, published[key].small) == (figure.kernels, figure.small), key
