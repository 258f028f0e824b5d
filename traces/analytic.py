"""Closed forms: how many bytes an algorithm must, should, and does move, by arithmetic on problem and schedule.

Three answers per plan, each `{tensor: (bytes read, bytes written)}`:

- `textbook`: what the papers' formulas count as HBM traffic, with no cache.
- `compulsory_bytes`: every input read once, every output written once, every intermediate once each way.
- `sm_port_bytes`: what crosses the ports of all SMs, tile by tile; the simulator must agree exactly.

The first and the last are functions of each algorithm's module, next to the program that they describe.
"""

from __future__ import annotations

from collections.abc import Callable

from traces.algorithms import algorithm
from traces.launch import Plan
from traces.traffic import Traffic, total
from traces.train import passes_of

__all__ = ["Traffic", "analytic", "compulsory_bytes", "sm_port_bytes", "textbook", "total"]


def analytic(plan: Plan) -> dict[str, float]:
    """HBM bytes of the textbook form, flops, and flops per byte: the JSON contract's `analytic`, machine side apart."""
    hbm_bytes = total(textbook(plan))
    flops = plan.problem.flops(plan.work)
    return {"hbm_bytes": hbm_bytes, "flops": flops, "arithmetic_intensity": flops / hbm_bytes}


def textbook(plan: Plan) -> Traffic:
    """The formulas of the literature, whatever mask and cache do; see `textbook` of the algorithm's module."""
    return _summed(plan, textbook) if plan.work == "train" else algorithm(plan.algorithm).textbook(plan)


def compulsory_bytes(plan: Plan) -> Traffic:
    """Least traffic with the plan's tensors in memory: inputs in, outputs out, intermediates out and in again."""
    return {
        t.name: (0 if t.name in plan.outputs else t.size_bytes, 0 if t.name in plan.inputs else t.size_bytes)
        for t in plan.tensors
    }


def sm_port_bytes(plan: Plan) -> Traffic:
    """Bytes that all tiles of the plan move through SM ports. A multicast tile counts whole in each SM it reaches."""
    return _summed(plan, sm_port_bytes) if plan.work == "train" else algorithm(plan.algorithm).sm_port(plan)


def _summed(plan: Plan, form: Callable[[Plan], Traffic]) -> Traffic:
    """A closed form of a training step: those of its two passes, added tensor by tensor."""
    both: Traffic = {}
    for part in passes_of(plan.algorithm, plan.problem, plan.schedule):
        for name, (read, written) in form(part).items():
            before = both.get(name, (0, 0))
            both[name] = before[0] + read, before[1] + written
    return both
