"""The registry: one module per algorithm, found by name.

An algorithm module has `name`, `summary`, `paper`, `Schedule_` (its frozen schedule class),
`default_schedule(problem, instruction, sm_count)` and `plan(problem, schedule)`. Adding an algorithm is adding a
file here and its name to `_MODULES`.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any, Protocol, cast

from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.schedule import Schedule

_MODULES = ("naive", "flash2", "flash3")


class Algorithm(Protocol):
    """What a module in this package provides."""

    name: str
    summary: str
    paper: str
    Schedule_: type[Schedule]

    def default_schedule(self, problem: AttentionProblem, instruction: str, sm_count: int) -> Any: ...

    def plan(self, problem: AttentionProblem, schedule: Any) -> Plan: ...


ALGORITHMS: dict[str, Algorithm] = {m: cast(Algorithm, import_module(f"traces.algorithms.{m}")) for m in _MODULES}


def algorithm(name: str) -> Algorithm:
    """The algorithm called `name`; ValueError lists the known ones."""
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"algorithm {name!r} is not one of {', '.join(ALGORITHMS)}{hint}")
    return ALGORITHMS[name]
