"""The registry: the CUDA kernels of each algorithm of `traces.algorithms`, under the same name.

A module has `instruction` (the tensor-core family that picks the default schedule of the trace), `kernels(plan)`,
and `schedule(problem, sm_count)` where its kernels want other tiles than that default: the changes. Adding an algorithm
is adding `<name>.py` and `<name>.cu` here: every module of this package is one.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from kernels_cupy.kernel import KernelSpec
from traces.algorithms import ALGORITHMS
from traces.algorithms import algorithm as trace_algorithm
from traces.launch import Plan
from traces.problem import AttentionProblem


class KernelModule(Protocol):
    """What a module in this package provides."""

    instruction: str

    def kernels(self, plan: Plan) -> tuple[KernelSpec, ...]:
        """The launches of `plan` in order; ValueError, in one sentence, for what the kernels do not support."""
        ...


def _load() -> dict[str, KernelModule]:
    """The modules of this package, in the order of `traces.algorithms`."""
    found = {m.name: cast(KernelModule, import_module(f"{__name__}.{m.name}")) for m in pkgutil.iter_modules(__path__)}
    return {name: found[name] for name in ALGORITHMS if name in found}


KERNELS: dict[str, KernelModule] = _load()


def kernel_module(name: str) -> KernelModule:
    """The kernels of the algorithm called `name`; ValueError lists those there are."""
    if name not in KERNELS:
        near = difflib.get_close_matches(name, KERNELS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"algorithm {name!r} has no CUDA kernels, only {', '.join(KERNELS)}{hint}")
    return KERNELS[name]


def make_plan(
    name: str, problem: AttentionProblem, sm_count: int, changes: Mapping[str, str | int | bool] | None = None
) -> Plan:
    """The plan that the kernels of `name` run by default on a GPU of `sm_count` SMs, with `changes` to the schedule.

    Raises:
        ValueError: no such algorithm or schedule key, or a value that is not allowed.
    """
    module, algorithm = kernel_module(name), trace_algorithm(name)
    own = module.schedule(problem, sm_count) if hasattr(module, "schedule") else {}
    schedule = algorithm.default_schedule(problem, module.instruction, sm_count).changed({**own, **(changes or {})})
    return algorithm.plan(problem, schedule)


def kernels(plan: Plan) -> tuple[KernelSpec, ...]:
    """The CUDA launches of `plan`, in order.

    Raises:
        ValueError: what the kernels do not support, in one sentence.
    """
    try:
        return kernel_module(plan.algorithm).kernels(plan)
    except ValueError as error:
        raise ValueError(f"kernels of {plan.algorithm}: {error}") from None
