"""From an algorithm's name to a plan that fits a GPU, with every obstacle said in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from gpusim.errors import UserError
from gpusim.sm.occupancy import ctas_per_sm
from gpusim.spec import GpuSpec
from gpusim.spec.units import format_size
from traces.algorithms import algorithm
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.train import default_train_schedule, passes_of, train_plan

__all__ = ["check_fits", "make_plan"]


def make_plan(
    name: str,
    problem: AttentionProblem,
    gpu: GpuSpec,
    changes: Mapping[str, str | int | bool] | None = None,
    train: bool = False,
) -> Plan:
    """The plan of the algorithm called `name`: its default schedule for this GPU, with `changes` to schedule keys.

    With `train` its backward pass follows (`traces.train`), whose schedule keys begin with `backward.`.

    Raises:
        UserError: no such algorithm or schedule key, or a value that is not allowed.
    """
    instruction = "wgmma" if gpu.sm.has_wgmma else "mma_sync"
    try:
        module = algorithm(name)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        if train:
            both = default_train_schedule(name, problem, instruction, gpu.sm.count).changed(changes or {})
            return train_plan(*passes_of(name, problem, both))
        schedule = module.default_schedule(problem, instruction, gpu.sm.count).changed(changes or {})
        return module.plan(problem, schedule)
    except ValueError as error:
        raise UserError(f"algorithm {name}: {error}") from None


def check_fits(plan: Plan, gpu: GpuSpec) -> None:
    """Whether the GPU can run the plan: tensor-core instructions, memory size, and a CTA of each kernel on an SM.

    Raises:
        UserError: what it lacks, and what to change.
    """
    if not gpu.sm.has_wgmma and any(launch.instruction == "wgmma" for launch in plan.launches):
        raise UserError(
            f"algorithm {plan.algorithm} uses wgmma instructions, which {gpu.name} does not have; "
            "choose flash2 or a GPU with sm.has_wgmma"
        )
    need = sum(tensor.size_bytes for tensor in plan.tensors)
    if need > gpu.hbm.size_bytes:
        largest = max(plan.tensors, key=lambda tensor: tensor.size_bytes)
        raise UserError(
            f"algorithm {plan.algorithm} needs {need / 1e9:,.1f} GB for its tensors "
            f"({largest.name} alone {largest.size_bytes / 1e9:,.1f} GB), "
            f"but {gpu.name} has {format_size(gpu.hbm.size_bytes)} of HBM; "
            "make the problem smaller or the memory larger with --set hbm.size=…"
        )
    for launch in plan.launches:
        ctas_per_sm(gpu, launch.resources, launch.name)
