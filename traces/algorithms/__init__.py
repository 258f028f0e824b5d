"""The registry: one module per algorithm, found by name.

An algorithm module has what `Algorithm` lists. Adding an algorithm is adding a file here: every module of this package
is one.
"""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module
from typing import Any, Protocol, cast

from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.schedule import Schedule
from traces.traffic import Traffic


class Algorithm(Protocol):
    """What a module in this package provides.

    Attributes:
        name: as on the command line; the module's own.
        summary, paper: one line each for `gpusim algorithms`.
        order: place in that list: forward passes from 0, backward from 100, decode from 200.
        Schedule_: the frozen schedule class.

    A module may have `default_shape`, the problem's fields that mean something else here when the user leaves them out:
    decoding has one query row.
    """

    name: str
    summary: str
    paper: str
    order: int
    Schedule_: type[Schedule]

    def default_schedule(self, problem: AttentionProblem, instruction: str, sm_count: int) -> Any:
        """The tiles that a kernel library would choose, for a tensor-core family and a number of SMs."""
        ...

    def plan(self, problem: AttentionProblem, schedule: Any) -> Plan:
        """Tensors and launches; ValueError for what the algorithm does not do (`AttentionProblem.require`)."""
        ...

    def textbook(self, plan: Plan) -> Traffic:
        """HBM traffic by the literature's formula."""
        ...

    def sm_port(self, plan: Plan) -> Traffic:
        """Traffic of all tiles at the SM ports, exactly."""
        ...


def _load() -> dict[str, Algorithm]:
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = sorted((cast(Algorithm, m) for m in modules), key=lambda m: (m.order, m.name))
    return {m.name: m for m in found}


ALGORITHMS: dict[str, Algorithm] = _load()


def default_shape(name: str) -> dict[str, int]:
    """Fields of a problem that the algorithm called `name` takes otherwise than `AttentionProblem` when not given."""
    return dict(getattr(algorithm(name), "default_shape", {}))


def algorithm(name: str) -> Algorithm:
    """The algorithm called `name`; ValueError lists the known ones."""
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"algorithm {name!r} is not one of {', '.join(ALGORITHMS)}{hint}")
    return ALGORITHMS[name]
