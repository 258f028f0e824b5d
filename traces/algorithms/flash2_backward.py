"""FlashAttention-2 backward (Dao 2023, arXiv:2307.08691, algorithm 2), with the structure of its CUDA release.

A kernel computes D = rowsum(dO O) and clears dQ's fp32 sum. Then one CTA per block of keys and values, which stay on
chip with their gradients while Q and dO stream past: it recomputes P from the row log-sum-exp, and adds its part of dQ
to the sum in the L2. A last kernel converts that to dQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.dtypes import DTYPES
from traces.flash2_backward_program import asynchronous, by_warps
from traces.gradients import (
    INPUTS,
    OUTPUTS,
    GradientTensors,
    convert,
    head_part,
    per_query_head,
    preprocess,
    sum_heads,
)
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Program
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.softmax import NO_MASK
from traces.tensor import Matrix
from traces.traffic import Traffic, blocks, read_once, sizes, written_once

name = "flash2_backward"
summary = "FlashAttention-2 backward: one CTA per key block, P recomputed, dQ added up in the L2"
paper = "Dao 2023, arXiv:2307.08691, algorithm 2"
order = 120


@dataclass(frozen=True, slots=True)
class Flash2BackwardSchedule(Schedule):
    """Tiles of FlashAttention-2's backward pass.

    Attributes:
        tile_q: query rows per step (Br).
        tile_kv: key/value rows per CTA (Bc).
        warps: warps per CTA.
        row_warps: how many of them lie along a product's rows; each re-reads the other operand.
        row_tile: rows per CTA of the kernels before and after.
        row_pass: how many of them are under way at once; 0: all.
        instruction: tensor-core family, mma_sync (the release) or wgmma, with which Q and dO have two buffers each, and
            P stays in registers if every warp has 16 keys of its own.
    """

    tile_q: int = 64
    tile_kv: int = 128
    warps: int = 8
    row_warps: int = 2
    row_tile: int = 64
    row_pass: int = 0
    instruction: str = "mma_sync"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, 16)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.warps <= 32, f"schedule key warps must be 1 to 32, not {self.warps}")
        within = 1 <= self.row_warps <= self.warps
        require(within, f"schedule key row_warps must be 1 to {self.warps} (the warps), not {self.row_warps}")
        require(self.row_tile >= 1, f"schedule key row_tile must be at least 1, not {self.row_tile}")
        require(self.row_pass >= 0, f"schedule key row_pass must be at least 0, not {self.row_pass}")
        require_one_of("instruction", self.instruction, ("mma_sync", "wgmma"))


Schedule_ = Flash2BackwardSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash2BackwardSchedule:
    """Tiles of the CUDA release by head dimension (on fp32 data halved, to fit the same shared memory)."""
    d = max(problem.dim, problem.dim_v)
    tile_q, tile_kv, row_warps = (128, 128, 4) if d <= 64 else (64, 128, 2) if d <= 128 else (64, 64, 4)
    row_tile = tile_q
    if problem.kv_storage.element_bytes == 4:
        tile_q, tile_kv = tile_q // 2, tile_kv // 2
    return Flash2BackwardSchedule(tile_q=tile_q, tile_kv=tile_kv, row_warps=row_warps, row_tile=row_tile)


def plan(problem: AttentionProblem, schedule: Flash2BackwardSchedule) -> Plan:
    """Tensors and launches: row sums, the key blocks, dQ's conversion, and with grouped queries two sums over heads."""
    p = problem
    p.require(("dim_v",))
    t = GradientTensors(p)
    dk, dv = (per_query_head(t.table, p, tensor) for tensor in (t.dk, t.dv))
    key_blocks = blocks(p.seq_kv, schedule.tile_kv)

    def work(cta: int) -> Sequence[WorkItem]:
        """Grid (key blocks, batch, heads), key blocks fastest."""
        rest, block = divmod(cta, key_blocks)
        h, b = divmod(rest, p.batch)
        key = block * schedule.tile_kv
        queries = tuple(x.view(b, h) for x in (t.q, t.do, t.lse, t.d, t.dq_sum))
        keys = tuple(x.view(b, h // p.group).window(key, schedule.tile_kv) for x in (t.k, t.v))
        results = tuple(head_part(p, x, b, h).window(key, schedule.tile_kv) for x in (dk, dv))
        return [WorkItem((*queries, *keys, *results), block_parameters(p, key, schedule.tile_q))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        first_row, diagonal = parameters
        block = matrices, first_row, diagonal, p.scale, schedule.tile_q, schedule.tile_kv
        if schedule.instruction == "mma_sync":
            return (by_warps(*block),)
        return (asynchronous(*block, exchanges_p(schedule)),)

    resources = CtaResources(schedule.warps * 32, 255, shared_bytes(p, schedule))
    ctas, columns = key_blocks * p.batch * p.heads, schedule.warps // schedule.row_warps
    family, warps = schedule.instruction, schedule.warps
    main = KernelLaunch(
        "flash2_backward",
        ctas,
        resources,
        work,
        agents,
        family,
        warps,
        warp_columns=columns,
        copies="cp_async",
    )
    rows = schedule.row_tile, schedule.row_pass
    launches = (
        preprocess(t, *rows),
        main,
        convert("convert_dQ", t.dq_sum, t.dq, schedule.row_tile, p.scale, schedule.row_pass),
        *sum_heads(p, dk, t.dk, *rows),
        *sum_heads(p, dv, t.dv, *rows),
    )
    return Plan(name, p, schedule, t.table.tensors, launches, INPUTS, OUTPUTS, "backward")


def shared_bytes(p: AttentionProblem, s: Flash2BackwardSchedule) -> int:
    """Shared memory of a CTA: K, V, buffers of Q and dO, and what goes from one product to the next.

    With mma.sync that is P and dS, and Q alone has two buffers. With wgmma Q, dO, LSE and D have two, rows take whole
    panels of 64 columns, and P is there only where warps share keys: their scores are then of different queries, but
    dV's rows need all of them.
    """
    m, n, element = s.tile_q, s.tile_kv, p.storage.element_bytes
    if s.instruction == "mma_sync":
        return element * (n * (p.dim + p.dim_v) + m * (2 * p.dim + p.dim_v) + 2 * m * n)
    row = 64 * (blocks(p.dim, 64) + blocks(p.dim_v, 64))
    exchanged = 2 if exchanges_p(s) else 1
    return element * ((n + 2 * m) * row + exchanged * m * n) + 2 * 2 * m * DTYPES["fp32"].element_bytes


def exchanges_p(s: Flash2BackwardSchedule) -> bool:
    """Whether warps share keys, so that P goes through shared memory on wgmma too."""
    return s.tile_kv < 16 * s.warps


def block_parameters(p: AttentionProblem, key: int, tile_q: int) -> tuple[int, int]:
    """(first query row to visit, diagonal of row 0) of the key block that starts at `key`.

    Under the causal mask row i sees the block's key j iff j <= i + diagonal.
    """
    if not p.causal:
        return 0, NO_MASK
    diagonal = p.diagonal - key
    return max(0, -diagonal) // tile_q * tile_q, diagonal


def textbook(plan: Plan) -> Traffic:
    """16Nd bytes per fp16 head: Q, K, V, O and dO read, dQ, dK and dV written; rows of fp32 numbers are left out."""
    return read_once(plan, "Q", "K", "V", "O", "dO") | written_once(plan, *OUTPUTS)


def sm_port(plan: Plan) -> Traffic:
    """Every key block reads the queries that see it, and writes their part of dQ; so do the kernels around."""
    found = key_block_bytes(plan) | written_once(plan, "dK", "dV")
    if plan.problem.group > 1:  # a part per query head, read again to be summed
        size = sizes(plan)
        found |= {f"{x}_heads": (size[f"{x}_heads"], size[f"{x}_heads"]) for x in ("dK", "dV")}
    return found


def key_block_bytes(plan: Plan) -> Traffic:
    """SM-port bytes of row sums, key blocks and dQ's conversion; dK and dV are left to the caller."""
    p, s, size = plan.problem, plan.schedule, sizes(plan)
    starts = (block_parameters(p, key, s.tile_q)[0] for key in range(0, p.seq_kv, s.tile_kv))
    rows = p.batch * p.heads * sum(p.seq - start for start in starts)
    element = p.storage.element_bytes
    return {
        "Q": (rows * p.dim * element, 0),
        "K": (size["K"] * p.group, 0),
        "V": (size["V"] * p.group, 0),
        "O": (size["O"], 0),
        "LSE": (rows * 4, 0),
        "dO": (size["dO"] + rows * p.dim_v * element, 0),
        "D": (rows * 4, size["D"]),
        "dQ_sum": (size["dQ_sum"], size["dQ_sum"] + rows * p.dim * 4),
        "dQ": (0, size["dQ"]),
    }
