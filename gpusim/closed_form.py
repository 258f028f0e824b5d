"""The closed form of a plan on a GPU: bytes, operations, intensity, and which side of the ridge point they lie."""

from __future__ import annotations

from typing import Any

from gpusim.spec import GpuSpec
from traces.analytic import analytic
from traces.launch import Plan


def closed_form(plan: Plan, gpu: GpuSpec) -> dict[str, Any]:
    """`analytic` of the JSON contract."""
    closed, ridge = analytic(plan), gpu.ridge_point(plan.problem.dtype)
    bound = "memory" if closed["arithmetic_intensity"] < ridge else "compute"
    return {**closed, "ridge_point": ridge, "bound": bound}
