"""Cycle-level simulator of a GPU's memory hierarchy for attention kernels.

>>> from gpusim import AttentionProblem, load_gpu, make_plan, simulate
>>> gpu = load_gpu("h200", ["l2.size=120MiB"])
>>> result = simulate(make_plan("flash2", AttentionProblem(heads=1, seq=512), gpu), gpu)
>>> result.total().dram_read_bytes
393216
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusim.machine import simulate
    from gpusim.plans import make_plan
    from gpusim.result import Result
    from gpusim.spec.load import load_gpu
    from traces.problem import AttentionProblem

__all__ = ["AttentionProblem", "Result", "load_gpu", "make_plan", "simulate"]

_HOMES = {
    "AttentionProblem": "traces.problem",
    "Result": "gpusim.result",
    "load_gpu": "gpusim.spec.load",
    "make_plan": "gpusim.plans",
    "simulate": "gpusim.machine",
}
"""Where each public name lives: imported when first used, so that the command line starts at once."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
