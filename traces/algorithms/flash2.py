"""FlashAttention-2 forward (Dao 2023, arXiv:2307.08691, algorithm 1), with the tiles of its CUDA release.

One CTA per block of query rows: the block stays on chip, K and V stream past it, and only O and the row
log-sum-exp are written. The next K is copied while the softmax runs, V while QK^T runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Matmul, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.query_blocks import CTA_ORDERS, QueryBlocks, query_block_bytes
from traces.schedule import KV_ORDERS, Schedule, key_value_blocks, require, require_multiple, require_one_of
from traces.softmax import ONLINE_INSTRUCTIONS, finish, mask_scores, online_step
from traces.tensor import Matrix
from traces.traffic import Traffic, read_once, written_once

name = "flash2"
summary = "FlashAttention-2 forward: one CTA per query block, K and V streamed from the last block down"
paper = "Dao 2023, arXiv:2307.08691, algorithm 1"
order = 20


@dataclass(frozen=True, slots=True)
class Flash2Schedule(Schedule):
    """Tiles and orders of FlashAttention-2.

    Attributes:
        tile_q: query rows per CTA (Br).
        tile_kv: key/value rows per step (Bc).
        stages: K and V buffers in shared memory (1 each in the CUDA release).
        warps: warps per CTA; each owns tile_q / warps rows.
        kv_order: order of the KV blocks, forward, backward (the release) or sawtooth (alternating by query block).
        cta_order: m_fastest (the release: grid (M blocks, batch, heads)), head_fastest, or longest_first.
        instruction: tensor-core family, mma_sync (the release) or wgmma.
    """

    tile_q: int = 128
    tile_kv: int = 64
    stages: int = 1
    warps: int = 4
    kv_order: str = "backward"
    cta_order: str = "m_fastest"
    instruction: str = "mma_sync"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, 16)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(1 <= self.warps <= 32, f"schedule key warps must be 1 to 32, not {self.warps}")
        require_one_of("kv_order", self.kv_order, KV_ORDERS)
        require_one_of("cta_order", self.cta_order, CTA_ORDERS)
        require_one_of("instruction", self.instruction, ("mma_sync", "wgmma"))


Schedule_ = Flash2Schedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash2Schedule:
    """Tiles of the CUDA release by head dimension (on fp32 data halved, to fit the same shared memory)."""
    d = problem.dim
    tile_q, tile_kv, warps = (
        (128, 128, 4) if d <= 64 else (128, 64, 4) if d <= 128 else (128, 64, 8) if d <= 192 else (64, 64, 4)
    )
    if problem.kv_storage.element_bytes == 4:
        tile_q, tile_kv = tile_q // 2, tile_kv // 2
    return Flash2Schedule(tile_q=tile_q, tile_kv=tile_kv, warps=warps)


def plan(problem: AttentionProblem, schedule: Flash2Schedule) -> Plan:
    """Tensors and the single launch."""
    p = problem
    p.require()
    blocks = QueryBlocks(p, schedule.tile_q, schedule.cta_order, schedule.kv_order)

    def work(cta: int) -> Sequence[WorkItem]:
        return [blocks.item(cta)]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        keys, diagonal, backward = parameters
        return (flash2_block(matrices, keys, diagonal, backward, p.scale, schedule),)

    shared = p.dim * (
        schedule.tile_q * p.storage.element_bytes + 2 * schedule.stages * schedule.tile_kv * p.kv_storage.element_bytes
    )
    resources = CtaResources(schedule.warps * 32, 255, shared)
    launch = KernelLaunch("flash2_forward", len(blocks), resources, work, agents, schedule.instruction, schedule.warps)
    return Plan(name, p, schedule, blocks.tensors, (launch,), ("Q", "K", "V"), ("O", "LSE"))


def flash2_block(
    matrices: tuple[Matrix, ...], keys: int, diagonal: int, backward: int, scale: float, schedule: Flash2Schedule
) -> Program:
    """One query block against `keys` keys. The double-buffering is the CUDA release's: V_j is copied under
    S = QK_j^T, K_{j+1} under the softmax; with `stages` > 1 both run that much further ahead.
    """
    q, k, v, o, lse = matrices
    rows, d, step = schedule.tile_q, v.cols, schedule.tile_kv
    blocks = key_value_blocks(-(-keys // step), "backward" if backward else "forward", 0)
    q_tile = yield Load(q.tile(0, rows))

    def load(matrix: Matrix, position: int) -> Load:
        start = blocks[position] * step
        return Load(matrix.tile(start, min(step, keys - start)))

    k_tiles: list[Any] = []
    v_tiles: list[Any] = []
    for position in range(min(schedule.stages, len(blocks))):
        k_tiles.append((yield load(k, position)))
        if position + 1 < min(schedule.stages, len(blocks)):
            v_tiles.append((yield load(v, position)))

    maximum = np.full((q.rows, 1), -np.inf, np.float32)
    total = np.zeros((q.rows, 1), np.float32)
    output: Any = np.zeros((q.rows, d), np.float32)
    yield Wait(q_tile)
    for position, block in enumerate(blocks):
        yield Wait(k_tiles[position])
        if len(v_tiles) < len(blocks):
            v_tiles.append((yield load(v, len(v_tiles))))
        scores = yield Matmul(q_tile, k_tiles[position], (rows, step, d), transpose_b=True)
        if len(k_tiles) < len(blocks):
            k_tiles.append((yield load(k, len(k_tiles))))
        first = block * step
        state = yield Vector(
            lambda s, m, t, acc, first=first: online_step(
                mask_scores(s * np.float32(scale), first, diagonal), m, t, acc
            ),
            (scores, maximum, total, output),
            exps=rows * step,
            instructions=ONLINE_INSTRUCTIONS * rows * step + rows * d,
            results=4,
        )
        probabilities, maximum, total, output = state
        yield Wait(v_tiles[position])
        output = yield Matmul(probabilities, v_tiles[position], (rows, d, step), output, a_in_registers=True)
        k_tiles[position] = v_tiles[position] = None
    result, row_lse = yield Vector(finish, (maximum, total, output), instructions=2 * rows * d, results=2)
    yield Store(o.tile(0, rows), result)
    yield Store(lse.tile(0, 1), row_lse)


def textbook(plan: Plan) -> Traffic:
    """8Nd bytes per fp16 head: Q, K and V read, O written; LSE is left out."""
    return read_once(plan, "Q", "K", "V") | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Every query block reads the keys and values that its rows can see."""
    return query_block_bytes(plan, plan.schedule.tile_q)
