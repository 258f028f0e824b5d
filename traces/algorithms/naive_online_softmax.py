"""Attention as three kernels (`traces.three_kernels`) whose softmax finds maximum and sum of a row in a single pass.

Each block of scores updates a running maximum m and a running sum l, l = l exp(m_old - m) + sum exp(s - m) (Milakov &
Gimelshein 2018, arXiv:1805.02867, algorithm 3); then every block is normalised and written. The second pass finds the
scores on chip where a row fits (`softmax_resident`), and reads S again where it does not: 3 accesses per score, one
fewer than with a pass each for maximum and sum.

`softmax_instructions` counts both passes, half of it in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.launch import Plan
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.schedule import require_multiple
from traces.softmax import RowMask, online_scores, probabilities
from traces.tensor import Matrix
from traces.three_kernels import ThreeKernelSchedule, default_tiles, three_kernels
from traces.three_kernels import sm_port as three_kernel_port
from traces.three_kernels import textbook as three_kernel_textbook
from traces.traffic import Traffic, blocks

name = "naive_online_softmax"
summary = "three kernels as naive, with a softmax that finds maximum and sum of a row in a single pass"
paper = "Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3"
order = 5

RESIDENT_BYTES = 48 << 10
"""Rows up to this size stay in shared memory by default: what a CUDA kernel may use without asking for more."""

BLOCKS_IN_FLIGHT = 2
"""Blocks of scores under way or in use at once, where rows do not stay on chip."""


@dataclass(frozen=True, slots=True)
class OnlineSoftmaxSchedule(ThreeKernelSchedule):
    """Tiles of the two GEMMs and of the softmax; see `ThreeKernelSchedule`.

    Attributes:
        softmax_tile: scores of a row per step of the softmax.
        softmax_resident: whether the scores of the first pass stay in shared memory for the second.
    """

    softmax_tile: int = 4096
    softmax_resident: bool = False

    def __post_init__(self) -> None:
        ThreeKernelSchedule.__post_init__(self)
        require_multiple("softmax_tile", self.softmax_tile, 8)


Schedule_ = OnlineSoftmaxSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> OnlineSoftmaxSchedule:
    """The GEMMs of `naive`; rows stay on chip where they fit in `RESIDENT_BYTES`."""
    resident = problem.seq_kv * problem.storage.element_bytes <= RESIDENT_BYTES
    tiles = default_tiles(problem, instruction, sm_count) | {"softmax_resident": resident}
    return OnlineSoftmaxSchedule().changed(tiles)


def plan(problem: AttentionProblem, schedule: OnlineSoftmaxSchedule) -> Plan:
    """Tensors and the three launches."""
    kept = blocks(problem.seq_kv, schedule.softmax_tile) if schedule.softmax_resident else BLOCKS_IN_FLIGHT
    columns = blocks(min(kept * schedule.softmax_tile, problem.seq_kv), 8) * 8  # rows start on 16-byte boundaries
    exchange = 4 * (schedule.softmax_threads // 32)  # besides a sum per warp, as in every softmax, its maximum
    shared = schedule.softmax_rows * columns * problem.storage.element_bytes + exchange

    def softmax(s: Matrix, probs: Matrix, mask: RowMask) -> Program:
        return online_softmax_rows(s, probs, mask, schedule)

    return three_kernels(name, problem, schedule, softmax, softmax_shared_bytes=shared)


def online_softmax_rows(s: Matrix, probs: Matrix, mask: RowMask, schedule: OnlineSoftmaxSchedule) -> Program:
    """Maximum and sum of a few rows in one pass over blocks of scores, the probabilities in another."""
    step, resident = schedule.softmax_tile, schedule.softmax_resident
    starts = range(0, s.cols, step)
    reads = [*starts] if resident else [*starts, *starts]
    scores: list[Any] = []

    def fetch(ahead_of: int) -> Program:
        while len(scores) < min(ahead_of + BLOCKS_IN_FLIGHT, len(reads)):
            scores.append((yield Load(s.tile(0, s.rows, reads[len(scores)], step))))
        yield Wait(scores[ahead_of])

    maximum: Any = np.full((s.rows, 1), -np.inf, np.float32)
    total: Any = np.zeros((s.rows, 1), np.float32)
    for position, start in enumerate(starts):
        yield from fetch(position)
        elements = s.rows * min(step, s.cols - start)
        maximum, total = yield Vector(
            lambda x, m, t, start=start: online_scores(mask.apply(x, start), m, t)[1:3],
            (scores[position], maximum, total),
            exps=elements + s.rows,
            instructions=schedule.softmax_instructions * elements // 2,
            results=2,
        )
        if not resident:
            scores[position] = None
    for position, start in enumerate(starts):
        if not resident:
            position += len(starts)
            yield from fetch(position)
        elements = s.rows * min(step, s.cols - start)
        result = yield Vector(
            lambda x, m, t, start=start: probabilities(mask.apply(x, start), m, t),
            (scores[position], maximum, total),
            exps=elements,
            instructions=schedule.softmax_instructions * elements // 2,
        )
        scores[position] = None
        yield Store(probs.tile(0, s.rows, start, step), result)


def textbook(plan: Plan) -> Traffic:
    """8N^2 + 6Nd bytes per fp16 head as `naive`, and another 2N^2 where S is read twice."""
    return _scores_read(plan, three_kernel_textbook(plan))


def sm_port(plan: Plan) -> Traffic:
    """As `naive`, with S read twice where its rows do not stay on chip."""
    return _scores_read(plan, three_kernel_port(plan))


def _scores_read(plan: Plan, traffic: Traffic) -> Traffic:
    read, written = traffic["S"]
    return traffic | {"S": (read if plan.schedule.softmax_resident else 2 * read, written)}
