"""FlashAttention-3 backward (Shah et al. 2024, arXiv:2407.08608, section 3 and appendix B), for Hopper.

One CTA per block of keys and values. A producer copies Q and dO (with their LSE and D) through shared-memory buffers;
each consumer warpgroup owns a share of the keys, works on transposed scores, and keeps its dK and dV in registers; a
third role adds dQ, which the warpgroups leave in shared memory, to an fp32 sum in global memory by bulk copies
(cp.reduce.async.bulk). With grouped queries dK and dV are summed the same way.

The release also copies LSE to base 2 in its first kernel; that is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.algorithms.flash2_backward import block_parameters, key_block_bytes
from traces.dtypes import DTYPES
from traces.flash3_backward_program import DS_BUFFERS, KeyBlock, flash3_key_block
from traces.gradients import INPUTS, OUTPUTS, GradientTensors, convert, preprocess, zero
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Program
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.tensor import Matrix
from traces.traffic import Traffic, read_once, sizes, written_once

name = "flash3_backward"
summary = "FlashAttention-3 backward: producer, consumer warpgroups and a dQ writer that adds by bulk copies (Hopper)"
paper = "Shah et al. 2024, arXiv:2407.08608, appendix B"
order = 130


@dataclass(frozen=True, slots=True)
class Flash3BackwardSchedule(Schedule):
    """Tiles of FlashAttention-3's backward pass.

    Attributes:
        tile_q: query rows per step.
        tile_kv: key/value rows per CTA.
        warpgroups: consumers; each owns tile_kv / warpgroups keys and a share of dQ's columns.
        stages: buffers of Q and of dO in shared memory (each).
        row_tile: rows per CTA of the kernels before and after.
        instruction: tensor-core family.
    """

    tile_q: int = 64
    tile_kv: int = 128
    warpgroups: int = 2
    stages: int = 2
    row_tile: int = 64
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, 8)
        require(1 <= self.warpgroups <= 3, f"schedule key warpgroups must be 1 to 3, not {self.warpgroups}")
        require_multiple("tile_kv", self.tile_kv, 8 * self.warpgroups)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(self.row_tile >= 1, f"schedule key row_tile must be at least 1, not {self.row_tile}")
        require_one_of("instruction", self.instruction, ("wgmma",))


Schedule_ = Flash3BackwardSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash3BackwardSchedule:
    """Tiles of the CUDA release by head dimension and mask (on fp32 data halved, to fit the same shared memory)."""
    d = max(problem.dim, problem.dim_v)
    tile_q = 128 if d <= 64 else 80 if 96 < d <= 128 and not problem.causal else 64
    tile_kv, warpgroups, stages = (128, 2, 2) if d <= 128 else (96, 3, 1) if d <= 192 else (80, 2, 1)
    row_tile = tile_q
    if problem.kv_storage.element_bytes == 4:
        step = 8 * warpgroups
        tile_q, tile_kv = max(8, tile_q // 2 // 8 * 8), max(step, tile_kv // 2 // step * step)
    return Flash3BackwardSchedule(tile_q, tile_kv, warpgroups, stages, row_tile)


def plan(problem: AttentionProblem, schedule: Flash3BackwardSchedule) -> Plan:
    """Tensors and launches; with grouped queries also kernels that clear dK's and dV's sums and convert them."""
    p, s = problem, schedule
    p.require(("dim_v",))
    t = GradientTensors(p)
    grouped, fp32 = p.group > 1, DTYPES["fp32"]
    dk, dv = (
        t.table.add(f"{x.name}_sum", (x.batch, x.heads, x.rows, x.cols), fp32) if grouped else x for x in (t.dk, t.dv)
    )
    blocks = -(-p.seq_kv // s.tile_kv)

    def work(cta: int) -> Sequence[WorkItem]:
        rest, block = divmod(cta, blocks)
        b, h = divmod(rest, p.heads)
        key = block * s.tile_kv
        queries = tuple(x.view(b, h) for x in (t.q, t.do, t.lse, t.d, t.dq_sum))
        keys = tuple(x.view(b, h // p.group).window(key, s.tile_kv) for x in (t.k, t.v, dk, dv))
        return [WorkItem((*queries, *keys), block_parameters(p, key, s.tile_q))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        first_row, diagonal = parameters
        tiles = s.tile_q, s.tile_kv, s.stages, s.warpgroups
        return flash3_key_block(matrices, KeyBlock(p.scale, *tiles, first_row, diagonal, grouped))

    m, n, element = s.tile_q, s.tile_kv, p.storage.element_bytes
    shared = element * (n * (p.dim + p.dim_v) + s.stages * m * (p.dim + p.dim_v) + min(s.stages, DS_BUFFERS) * m * n)
    shared += 4 * m * (p.dim + 2 * s.stages)
    threads = 128 * (1 + s.warpgroups)
    resources = CtaResources(threads, 65536 // threads // 8 * 8, shared)
    ctas = blocks * p.batch * p.heads
    clear = [zero(f"zero_{x.name}", x, s.row_tile) for x in (dk, dv)] if grouped else []
    finish = [convert(f"convert_{y.name}", x, y, s.row_tile) for x, y in ((dk, t.dk), (dv, t.dv))] if grouped else []
    launches = (
        preprocess(t, s.row_tile),
        *clear,
        KernelLaunch("flash3_backward", ctas, resources, work, agents, s.instruction, warps=4),
        convert("convert_dQ", t.dq_sum, t.dq, s.row_tile, p.scale),
        *finish,
    )
    return Plan(name, p, s, t.table.tensors, launches, INPUTS, OUTPUTS, "backward")


def textbook(plan: Plan) -> Traffic:
    """16Nd bytes per fp16 head: Q, K, V, O and dO read, dQ, dK and dV written; rows of fp32 numbers are left out."""
    return read_once(plan, "Q", "K", "V", "O", "dO") | written_once(plan, *OUTPUTS)


def sm_port(plan: Plan) -> Traffic:
    """As `flash2_backward`, but query heads that share a KV head add to the same fp32 sums."""
    group, size = plan.problem.group, sizes(plan)
    found = key_block_bytes(plan) | written_once(plan, "dK", "dV")
    if group > 1:
        found |= {f"{x}_sum": (size[f"{x}_sum"], size[f"{x}_sum"] * (1 + group)) for x in ("dK", "dV")}
    return found
