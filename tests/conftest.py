"""One profile for every property-based test: the same examples in every run, however slow the machine."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import HealthCheck, settings

from traces.algorithms import ALGORITHMS

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_sessionstart() -> None:
    """Import what `tests.traces.problems.hook` looks into: hypothesis forbids that while a property is being tested."""
    for name in ALGORITHMS:
        import_module(f"tests.traces.algorithms.test_{name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if marked else ""
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    from kernels_cupy.errors import Unavailable
    from kernels_cupy.toolkit import require_gpu

    try:
        require_gpu()
    except Unavailable as error:
        return str(error)
    return ""
