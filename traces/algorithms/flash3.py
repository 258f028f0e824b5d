"""FlashAttention-3 forward (Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2): warp-specialised, for Hopper.

A producer warpgroup copies K and V through `stages` shared-memory buffers; each consumer warpgroup owns 64 query rows.
Within a warpgroup S_{j+1} = Q K_{j+1}^T runs on the tensor cores together with O += P_j V_j, and both run under the
other warpgroup's softmax. CTAs are persistent: one per SM loops over query blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.launch import CtaResources, KernelLaunch, Plan
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.query_blocks import CTA_ORDERS, FEATURES, QueryBlocks, query_block_bytes
from traces.schedule import KV_ORDERS, Schedule, key_value_blocks, require, require_multiple, require_one_of
from traces.softmax import ONLINE_INSTRUCTIONS, finish, mask_scores, online_scores
from traces.tensor import Matrix
from traces.traffic import Traffic, read_once, written_once

name = "flash3"
summary = "FlashAttention-3 forward: persistent CTAs, a producer and ping-pong consumer warpgroups (Hopper)"
paper = "Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2"
order = 30

ROWS_PER_WARPGROUP = 64
"""Rows of one wgmma instruction (PTX ISA, wgmma.mma_async m64nNk16)."""


@dataclass(frozen=True, slots=True)
class Flash3Schedule(Schedule):
    """Tiles and orders of FlashAttention-3.

    Attributes:
        tile_q: query rows per CTA, a multiple of 64: one consumer warpgroup per 64 rows.
        tile_kv: key/value rows per step.
        stages: K and V buffers in shared memory (each).
        kv_order: order of the KV blocks, forward, backward or sawtooth.
        cta_order: m_fastest, head_fastest, longest_first or swizzled (longest first within sections of heads that fit
            in the L2).
        section_heads: heads per section of the swizzled order; 0 for as many as fit.
        overlap: whether a warpgroup runs S_{j+1} = Q K_{j+1}^T together with O += P_j V_j (algorithm 2), or one product
            after the other (algorithm 1).
        persistent_ctas: CTAs launched; each fetches query blocks from a shared counter until none is left.
        instruction: tensor-core family.
    """

    tile_q: int = 128
    tile_kv: int = 128
    stages: int = 2
    kv_order: str = "backward"
    cta_order: str = "m_fastest"
    section_heads: int = 0
    overlap: bool = True
    persistent_ctas: int = 132
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, ROWS_PER_WARPGROUP)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(
            self.persistent_ctas >= 1, f"schedule key persistent_ctas must be at least 1, not {self.persistent_ctas}"
        )
        require(self.section_heads >= 0, f"schedule key section_heads must be at least 0, not {self.section_heads}")
        require_one_of("kv_order", self.kv_order, KV_ORDERS)
        require_one_of("cta_order", self.cta_order, CTA_ORDERS)
        require_one_of("instruction", self.instruction, ("wgmma",))


Schedule_ = Flash3Schedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash3Schedule:
    """Tiles of the CUDA release for fp16 and bf16 by head dimension and mask."""
    d = problem.dim
    if d <= 64:
        tile_q, tile_kv = 192, 128
    elif d <= 128:
        tile_q, tile_kv = 128, 128 if problem.causal else 176
    elif d <= 192:
        tile_q, tile_kv = 128, 96
    else:
        tile_q, tile_kv = 128, 80
    if problem.kv_storage.element_bytes == 4:
        tile_kv = max(8, tile_kv // 2 // 8 * 8 - 16)
    order = "longest_first" if problem.causal else "m_fastest"
    return Flash3Schedule(tile_q=tile_q, tile_kv=tile_kv, cta_order=order, persistent_ctas=sm_count)


def plan(problem: AttentionProblem, schedule: Flash3Schedule) -> Plan:
    """Tensors and the single persistent launch."""
    p = problem
    p.require(FEATURES)
    blocks = QueryBlocks(
        p,
        tile_q=schedule.tile_q,
        tile_kv=schedule.tile_kv,
        cta_order=schedule.cta_order,
        kv_order=schedule.kv_order,
        section_heads=schedule.section_heads,
    )
    ctas = min(schedule.persistent_ctas, len(blocks))

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        diagonal, backward = parameters
        return flash3_block(matrices, diagonal, backward, p, schedule)

    key_bytes = p.dim * p.kv_storage.element_bytes + p.dim_v * p.v_storage.element_bytes
    shared = schedule.tile_q * p.dim * p.storage.element_bytes + schedule.stages * schedule.tile_kv * key_bytes
    threads = 128 * (1 + schedule.tile_q // ROWS_PER_WARPGROUP)
    resources = CtaResources(threads, 65536 // threads // 8 * 8, shared)
    launch = KernelLaunch(
        "flash3_forward", ctas, resources, blocks.items, agents, schedule.instruction, warps=4, queue=len(blocks)
    )
    return Plan(name, p, schedule, blocks.tensors, (launch,), ("Q", "K", "V"), ("O", "LSE"))


def flash3_block(
    matrices: tuple[Matrix, ...], diagonal: int, backward: int, problem: AttentionProblem, schedule: Flash3Schedule
) -> tuple[Program, ...]:
    """The producer and the consumers of one query block; one that attends to no key writes its zeros at once."""
    q, k, v, o, lse = matrices
    step, stages = schedule.tile_kv, schedule.stages
    consumers = schedule.tile_q // ROWS_PER_WARPGROUP
    blocks = key_value_blocks(-(-k.rows // step), "backward" if backward else "forward", 0)

    q_full, q_empty = Barrier("Q full"), Barrier("Q empty", consumers, open_phases=1)
    k_full = [Barrier(f"K full {s}") for s in range(stages)]
    v_full = [Barrier(f"V full {s}") for s in range(stages)]
    k_empty = [Barrier(f"K empty {s}", consumers, open_phases=1) for s in range(stages)]
    v_empty = [Barrier(f"V empty {s}", consumers, open_phases=1) for s in range(stages)]
    buffer: dict[Any, Any] = {}

    def producer() -> Program:
        if not blocks:
            return
        yield Await(q_empty)
        buffer["Q"] = yield Load(q.tile(0, schedule.tile_q))
        yield Arrive(q_full, after=buffer["Q"])
        for position, block in enumerate(blocks):
            stage, start = position % stages, block * step
            for matrix, full, empty in ((k, k_full, k_empty), (v, v_full, v_empty)):
                yield Await(empty[stage])
                tile = yield Load(matrix.tile(start, step))
                buffer[matrix.name, stage] = tile
                yield Arrive(full[stage], after=tile)

    def consumer(warpgroup: int) -> Program:
        first_row = warpgroup * ROWS_PER_WARPGROUP
        own = max(0, min(ROWS_PER_WARPGROUP, q.rows - first_row))
        maximum = np.full((own, 1), -np.inf, np.float32)
        total = np.zeros((own, 1), np.float32)
        output: Any = np.zeros((own, v.cols), np.float32)
        probabilities: Any = None
        decay: Any = None

        def issue_scores(position: int) -> Program:
            stage = position % stages
            yield Await(k_full[stage])
            shape = (ROWS_PER_WARPGROUP, step, q.cols)
            return (yield Matmul(q_rows, buffer[k.name, stage], shape, transpose_b=True, asynchronous=True))

        def issue_output(position: int) -> Program:
            stage = position % stages
            yield Await(v_full[stage])
            tile = buffer[v.name, stage]
            shape = (ROWS_PER_WARPGROUP, v.cols, step)
            return (yield Matmul(probabilities, tile, shape, output, a_in_registers=True, asynchronous=True))

        def softmax(position: int, scores: Any) -> Program:
            first = blocks[position] * step
            return (
                yield Vector(
                    lambda s, m, t: online_scores(
                        mask_scores(s * np.float32(problem.scale), first, diagonal + first_row, problem.window), m, t
                    ),
                    (scores, maximum, total),
                    exps=ROWS_PER_WARPGROUP * step,
                    instructions=ONLINE_INSTRUCTIONS * ROWS_PER_WARPGROUP * step,
                    results=4,
                )
            )

        def rescale() -> Program:
            return (yield Vector(lambda acc, f: acc * f, (output, decay), instructions=ROWS_PER_WARPGROUP * v.cols))

        if blocks:
            yield Await(q_full)
            q_rows = yield Vector(lambda tile: tile[first_row : first_row + own], (buffer["Q"],))
        for position in range(len(blocks)):
            scores = yield from issue_scores(position)
            # Algorithm 2 runs the product P V of the block before under this block's scores and softmax.
            behind = schedule.overlap and position > 0
            if behind:
                output = yield from issue_output(position - 1)
            yield Wait(scores)
            yield Arrive(k_empty[position % stages])
            if position == len(blocks) - 1:
                yield Arrive(q_empty)
            probabilities, maximum, total, decay = yield from softmax(position, scores)
            if behind:
                yield Wait(output)
                yield Arrive(v_empty[(position - 1) % stages])
            if position > 0:
                output = yield from rescale()
            if not schedule.overlap or position == len(blocks) - 1:
                output = yield from issue_output(position)
                yield Wait(output)
                yield Arrive(v_empty[position % stages])
        result, row_lse = yield Vector(
            finish, (maximum, total, output), instructions=2 * ROWS_PER_WARPGROUP * v.cols, results=2
        )
        yield Store(o.tile(first_row, own), result)
        yield Store(lse.tile(0, 1, first_row, own), row_lse)

    return producer(), *(consumer(w) for w in range(consumers))


def textbook(plan: Plan) -> Traffic:
    """8Nd bytes per fp16 head: Q, K and V read, O written; LSE is left out."""
    return read_once(plan, "Q", "K", "V") | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Every query block reads the keys and values that its rows attend to."""
    return query_block_bytes(plan, plan.schedule.tile_q, plan.schedule.tile_kv)
