"""Attention as three kernels (`traces.three_kernels`) whose softmax reads a row once and keeps it on chip."""

from __future__ import annotations

from dataclasses import dataclass

from traces.launch import Plan
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.softmax import RowMask, row_softmax
from traces.tensor import Matrix
from traces.three_kernels import ThreeKernelSchedule, default_tiles, sm_port, textbook, three_kernels

__all__ = ["NaiveSchedule", "Schedule_", "default_schedule", "plan", "sm_port", "textbook"]

name = "naive"
summary = "three kernels: S = QK^T, P = softmax(S), O = PV; S and P go through global memory"
paper = "Dao et al. 2022, arXiv:2205.14135, algorithm 0"
order = 0


@dataclass(frozen=True, slots=True)
class NaiveSchedule(ThreeKernelSchedule):
    """Tiles of the two GEMMs and of the softmax; see `ThreeKernelSchedule`."""


Schedule_ = NaiveSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> NaiveSchedule:
    """See `default_tiles`."""
    return NaiveSchedule().changed(default_tiles(problem, instruction, sm_count))


def plan(problem: AttentionProblem, schedule: NaiveSchedule) -> Plan:
    """Tensors and the three launches."""

    def softmax(s: Matrix, probs: Matrix, mask: RowMask) -> Program:
        return softmax_rows(s, probs, mask, schedule.softmax_instructions)

    return three_kernels(name, problem, schedule, softmax, softmax_shared_bytes=0)


def softmax_rows(s: Matrix, probs: Matrix, mask: RowMask, instructions: int) -> Program:
    """Read a few rows of scores, normalise each and write the probabilities."""
    scores = yield Load(s.tile(0, s.rows))
    yield Wait(scores)
    elements = s.rows * s.cols
    result = yield Vector(
        lambda x: row_softmax(mask.apply(x, 0)), (scores,), exps=elements, instructions=instructions * elements
    )
    yield Store(probs.tile(0, s.rows), result)
