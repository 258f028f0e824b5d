"""FlashAttention-2 forward (Dao 2023, arXiv:2307.08691, algorithm 1), with the tiles of its CUDA release.

One CTA per block of query rows: the block stays on chip, K and V stream past it, and only O and the row
log-sum-exp are written. The next K is copied while the softmax runs, V while QK^T runs.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.combine import MAX_SPLITS, choose_splits
from traces.kv_tiles import KvSource, Loading, kv_shared_bytes
from traces.launch import CtaResources, KernelLaunch, Plan
from traces.ops import Load, Matmul, Op, Program, Store, Vector, Wait, find_place
from traces.problem import AttentionProblem
from traces.query_blocks import CTA_ORDERS, FEATURES, QueryBlocks, query_block_bytes
from traces.schedule import KV_ORDERS, Schedule, key_value_blocks, require, require_multiple, require_one_of
from traces.softmax import ONLINE_INSTRUCTIONS, finish, mask_scores, online_step
from traces.tensor import Matrix
from traces.traffic import Traffic, blocks, read_once, written_once

name = "flash2"
summary = "FlashAttention-2 forward: one CTA per query block, K and V streamed from the last block down"
paper = "Dao 2023, arXiv:2307.08691, algorithm 1"
order = 20

KEYS_BETWEEN = 16
"""Keys of a step of PV, under whose products the exponentials of the next step are computed."""
PLACE_CHAIN, FINISH_CHAIN = 125, 290
"""Instructions one after another before the first copy (560 cycles between clock stamps in flash2.cu on an H200), and
after the last product: sums and LSE of rows, and once more the block's place (1120 + 580, less the work on O)."""


@dataclass(frozen=True, slots=True)
class Flash2Schedule(Schedule):
    """Tiles and orders of FlashAttention-2.

    Attributes:
        tile_q: query rows per CTA (Br).
        tile_kv: key/value rows per step (Bc).
        stages: K and V buffers in shared memory (1 each in the CUDA release).
        warps: warps per CTA; each owns tile_q / warps rows.
        kv_order: order of the KV blocks, forward, backward (the release) or sawtooth (alternating by query block).
        cta_order: m_fastest (the release: grid (M blocks, batch, heads)), head_fastest, longest_first, or swizzled
            (longest first within sections of heads that fit in the L2).
        section_heads: heads per section of the swizzled order; 0 for as many as fit.
        splits: parts that each block's keys are split into, with a kernel that combines them (the release then has
            tile_q 64); 1 for none, 0 for as many as fill `cta_slots` by the release's rule.
        cta_slots: CTAs that the GPU runs at once, for that rule (2 per SM).
        instruction: tensor-core family, mma_sync (the release) or wgmma.
    """

    tile_q: int = 128
    tile_kv: int = 64
    stages: int = 1
    warps: int = 4
    kv_order: str = "backward"
    cta_order: str = "m_fastest"
    section_heads: int = 0
    splits: int = 1
    cta_slots: int = 264
    instruction: str = "mma_sync"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, 16)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(1 <= self.warps <= 32, f"schedule key warps must be 1 to 32, not {self.warps}")
        require(0 <= self.splits <= MAX_SPLITS, f"schedule key splits must be 0 to {MAX_SPLITS}, not {self.splits}")
        require(self.section_heads >= 0, f"schedule key section_heads must be at least 0, not {self.section_heads}")
        require(self.cta_slots >= 1, f"schedule key cta_slots must be at least 1, not {self.cta_slots}")
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
    return Flash2Schedule(tile_q=tile_q, tile_kv=tile_kv, warps=warps, cta_slots=2 * sm_count)


def splits_of(problem: AttentionProblem, schedule: Flash2Schedule) -> int:
    """The schedule's splits, or those that the release would choose."""
    p = problem
    ctas = p.batch * p.heads * blocks(p.seq, schedule.tile_q)
    return schedule.splits or choose_splits(ctas, schedule.cta_slots, blocks(p.seq_kv, schedule.tile_kv))


def plan(problem: AttentionProblem, schedule: Flash2Schedule) -> Plan:
    """Tensors and the launch, or two with splits."""
    p = problem
    p.require((*FEATURES, "quantised_kv"))
    grid = QueryBlocks(
        p,
        tile_q=schedule.tile_q,
        tile_kv=schedule.tile_kv,
        cta_order=schedule.cta_order,
        kv_order=schedule.kv_order,
        section_heads=schedule.section_heads,
        splits=splits_of(p, schedule),
    )

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        diagonal, backward = parameters
        return (flash2_block(matrices, diagonal, backward, p, schedule),)

    shared = schedule.tile_q * p.dim * p.storage.element_bytes + kv_shared_bytes(p, schedule.tile_kv, schedule.stages)
    resources = CtaResources(schedule.warps * 32, 255, shared)
    launch = KernelLaunch(
        "flash2_forward",
        len(grid),
        resources,
        grid.items,
        agents,
        schedule.instruction,
        schedule.warps,
    )
    return Plan(name, p, schedule, grid.tensors, (launch, *grid.combine()), grid.inputs, ("O", "LSE"))


def flash2_block(
    matrices: tuple[Matrix, ...], diagonal: int, backward: int, problem: AttentionProblem, schedule: Flash2Schedule
) -> Program:
    """One query block against the keys it attends to. The double-buffering is the CUDA release's: V_j is copied under
    S = QK_j^T, K_{j+1} under the softmax; with `stages` > 1 both run that much further ahead. A block that attends to
    no key writes its zeros at once.
    """
    q, k, v, o, lse = matrices[:5]
    k_source, v_source = (KvSource(name, matrices, problem) for name in "KV")
    rows, step, scale = schedule.tile_q, schedule.tile_kv, np.float32(problem.scale)
    steps = key_value_blocks(blocks(k.rows, step), "backward" if backward else "forward", 0)
    q_tile: Any = None
    yield find_place(PLACE_CHAIN)
    if steps:
        q_tile = yield Load(q.tile(0, rows))

    def load(source: KvSource, position: int) -> Generator[Op, Any, Loading]:
        return source.load(steps[position] * step, step)

    k_tiles: list[Any] = []
    v_tiles: list[Any] = []
    for position in range(min(schedule.stages, len(steps))):
        k_tiles.append((yield from load(k_source, position)))
        if position + 1 < min(schedule.stages, len(steps)):
            v_tiles.append((yield from load(v_source, position)))

    maximum = np.full((q.rows, 1), -np.inf, np.float32)
    total = np.zeros((q.rows, 1), np.float32)
    output: Any = np.zeros((q.rows, v.cols), np.float32)
    if steps:
        yield Wait(q_tile)
    for position, block in enumerate(steps):
        k_tile = yield from k_source.ready(k_tiles[position])
        if len(v_tiles) < len(steps):
            v_tiles.append((yield from load(v_source, len(v_tiles))))
        scores = yield Matmul(q_tile, k_tile, (rows, step, q.cols), transpose_b=True)
        if len(k_tiles) < len(steps):
            k_tiles.append((yield from load(k_source, len(k_tiles))))
        first = block * step
        state = yield Vector(
            lambda s, m, t, acc, first=first: online_step(
                mask_scores(s * scale, first, diagonal, problem.window), m, t, acc
            ),
            (scores, maximum, total, output),
            exps=rows * step,
            instructions=ONLINE_INSTRUCTIONS * rows * step + rows * v.cols,
            results=4,
            parts=max(1, step // KEYS_BETWEEN),
        )
        probabilities, maximum, total, output = state
        v_tile = yield from v_source.ready(v_tiles[position])
        output = yield Matmul(probabilities, v_tile, (rows, v.cols, step), output, a_in_registers=True)
        k_tiles[position] = v_tiles[position] = None
    result, row_lse = yield Vector(
        finish, (maximum, total, output), instructions=2 * rows * v.cols, results=2, chain=FINISH_CHAIN
    )
    yield Store(o.tile(0, rows), result)
    yield Store(lse.tile(0, 1), row_lse)


def textbook(plan: Plan) -> Traffic:
    """8Nd bytes per fp16 head: Q, K and V read, O written; LSE is left out. Scales of a quantised cache are in."""
    return read_once(plan, *plan.inputs) | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Every query block reads the keys and values that its rows attend to; splits write and read partial results."""
    schedule = plan.schedule
    return query_block_bytes(plan, schedule.tile_q, schedule.tile_kv, splits_of(plan.problem, schedule))
