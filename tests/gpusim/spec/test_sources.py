"""Is a source taken for what it is?"""

from __future__ import annotations

import doctest

import pytest

from gpusim.spec import sources
from gpusim.spec.sources import kind_of


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("NVIDIA A100 white paper: 40 MB", "data sheet"),
        ("gpu-benches (public measurements, RRZE HPC): 570 cycles", "published"),
        ("published microbenchmarks of A100: 29 cycles", "published"),
        ("measured: device property", "measured"),
        ("fitted: capacity curves", "fitted"),
        ("as h200: measured: device property", "as another GPU"),
        ("estimate: as fitted on the H200", "estimate"),
        ("follows l2.size; before: as h200: measured: 28 MiB", "follows"),
        ("set by --set", "given"),
        ("set in big.toml", "given"),
        ("as sm.clock", "default"),
        ("default: SMs in order", "default"),
    ],
)
def test_of_which_kind_is_a_source(source: str, kind: str) -> None:
    assert kind_of(source) == kind


def test_is_the_example_right() -> None:
    assert doctest.testmod(sources).failed == 0
