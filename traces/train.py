"""A training step as one plan: a forward pass, then the backward pass that goes with it, on the same tensors.

    step = train_plan(flash2.plan(problem, schedule), flash2_backward.plan(problem, other_schedule))

Between the passes the tensors that the backward pass reads besides Q, K, V and dO must be kept: P, or O and LSE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traces.algorithms import algorithm
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.problem import AttentionProblem
from traces.schedule import Schedule
from traces.tensor import Tensor, TensorTable

BACKWARD = {
    "naive": "naive_backward",
    "naive_online_softmax": "naive_backward",
    "flash1": "flash2_backward",
    "flash2": "flash2_backward",
    "flash3": "flash3_backward",
}
"""Forward algorithm → the backward pass that follows it in a training step."""

PREFIX = "backward."
"""Begins the schedule keys of the backward pass; those without are the forward pass's."""


@dataclass(frozen=True, slots=True)
class TrainSchedule(Schedule):
    """Schedules of both passes."""

    forward: Any
    backward: Any

    def changed(self, changes: Mapping[str, str | int | bool]) -> TrainSchedule:
        """A copy with changes applied: `tile_q` is the forward pass's, `backward.tile_q` the backward pass's."""
        behind = {key.removeprefix(PREFIX): value for key, value in changes.items() if key.startswith(PREFIX)}
        ahead = {key: value for key, value in changes.items() if not key.startswith(PREFIX)}
        return TrainSchedule(self.forward.changed(ahead), self.backward.changed(behind))

    def to_dict(self) -> dict[str, Any]:
        """Flat, with the keys that `changed` takes."""
        backward = {f"{PREFIX}{key}": value for key, value in self.backward.to_dict().items()}
        return {**self.forward.to_dict(), **backward}


def backward_of(forward: str) -> str:
    """The backward algorithm of a forward one; ValueError if there is none."""
    if forward not in BACKWARD:
        raise ValueError(f"algorithm {forward!r} cannot be trained; those that can are {', '.join(BACKWARD)}")
    return BACKWARD[forward]


def default_train_schedule(name: str, problem: AttentionProblem, instruction: str, sm_count: int) -> TrainSchedule:
    """Default schedules of the forward algorithm `name` and of its backward pass."""
    passes = (algorithm(name), algorithm(backward_of(name)))
    return TrainSchedule(*(module.default_schedule(problem, instruction, sm_count) for module in passes))


def passes_of(name: str, problem: AttentionProblem, schedule: TrainSchedule) -> tuple[Plan, Plan]:
    """The plans of the forward algorithm `name` and of its backward pass, each by itself."""
    backward = algorithm(backward_of(name)).plan(problem, schedule.backward)
    return algorithm(name).plan(problem, schedule.forward), backward


def train_plan(forward: Plan, backward: Plan) -> Plan:
    """Both plans' launches on one set of tensors, those of equal names shared.

    Its algorithm is the forward pass's name, its work `train`.

    Raises:
        ValueError: the plans are of different problems, or the backward pass wants what the forward one does not make.
    """
    if forward.problem != backward.problem:
        raise ValueError("the two passes of a training step must be of the same problem")
    made = {t.name for t in forward.tensors}
    lacking = [name for name in backward.inputs if name not in made and name != "dO"]
    if lacking:
        raise ValueError(f"{backward.algorithm} needs {', '.join(lacking)}, which {forward.algorithm} does not leave")
    table, shared = TensorTable(), {}
    for t in (*forward.tensors, *backward.tensors):
        if t.name not in shared:
            shared[t.name] = table.add(t.name, (t.batch, t.heads, t.rows, t.cols), t.dtype, t.layout)
        elif _shape(shared[t.name]) != _shape(t):
            raise ValueError(f"{forward.algorithm} and {backward.algorithm} disagree about tensor {t.name}")
    return Plan(
        forward.algorithm,
        forward.problem,
        TrainSchedule(forward.schedule, backward.schedule),
        table.tensors,
        tuple(_rebound(launch, shared) for launch in (*forward.launches, *backward.launches)),
        (*forward.inputs, *(name for name in backward.inputs if name not in made)),
        (*forward.outputs, *backward.outputs),
        "train",
    )


def kept_bytes(problem: AttentionProblem, name: str, checkpoint: bool = False) -> dict[str, int]:
    """Bytes that must stay in memory between the passes besides Q, K and V, by tensor.

    P, seq x seq_kv elements per head, for the naive algorithms; O, seq x dim_v elements, and LSE, seq fp32 numbers, for
    FlashAttention. Nothing with `checkpoint`: the forward pass is run again.
    """
    p, queries = problem, problem.batch * problem.heads * problem.seq
    element = p.storage.element_bytes
    if checkpoint:
        return {}
    if backward_of(name) == "naive_backward":
        return {"P": queries * p.seq_kv * element}
    return {"O": queries * p.dim_v * element, "LSE": queries * 4}


def _shape(t: Tensor) -> tuple[object, ...]:
    return t.batch, t.heads, t.rows, t.cols, t.dtype, t.layout


def _rebound(launch: KernelLaunch, tensors: Mapping[str, Tensor]) -> KernelLaunch:
    """The launch with its views moved to where `tensors` lie."""

    work: Callable[[int], Sequence[WorkItem]] = launch.work

    def work_there(index: int) -> Sequence[WorkItem]:
        return [
            WorkItem(tuple(view.moved(tensors[view.tensor.name]) for view in item.views), item.parameters)
            for item in work(index)
        ]

    return replace(launch, work=work_there)
