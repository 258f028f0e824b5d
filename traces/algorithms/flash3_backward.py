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
from typing import Any

import numpy as np

from traces.algorithms.flash2_backward import block_parameters, key_block_bytes
from traces.dtypes import DTYPES
from traces.gradients import (
    DS_INSTRUCTIONS,
    INPUTS,
    OUTPUTS,
    P_INSTRUCTIONS,
    Array,
    GradientTensors,
    convert,
    preprocess,
    probabilities,
    score_gradient,
    zero,
)
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Program, Reduce, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.tensor import Matrix
from traces.traffic import Traffic, read_once, sizes, written_once

name = "flash3_backward"
summary = "FlashAttention-3 backward: producer, consumer warpgroups and a dQ writer that adds by bulk copies (Hopper)"
paper = "Shah et al. 2024, arXiv:2407.08608, appendix B"
order = 130

DS_BUFFERS = 2
"""Buffers of dS: a warpgroup may be one step ahead of another."""


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
        return flash3_key_block(matrices, first_row, diagonal, p.scale, grouped, s)

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


def flash3_key_block(
    matrices: tuple[Matrix, ...],
    first_row: int,
    diagonal: int,
    scale: float,
    grouped: bool,
    schedule: Flash3BackwardSchedule,
) -> tuple[Program, ...]:
    """The producer, the consumers and the dQ writer of one block of keys."""
    q, do, lse, d, dq_sum, k, v, dk, dv = matrices
    m, n, stages, consumers = schedule.tile_q, schedule.tile_kv, schedule.stages, schedule.warpgroups
    own_keys, own_cols = n // consumers, -(-k.cols // consumers)
    rows = list(range(first_row, q.rows, m))[::-1]

    kv_full = Barrier("K V full", 2)
    q_full = [Barrier(f"Q full {s}", 2) for s in range(stages)]
    do_full = [Barrier(f"dO full {s}", 2) for s in range(stages)]
    q_empty = [Barrier(f"Q empty {s}", consumers, open_phases=1) for s in range(stages)]
    do_empty = [Barrier(f"dO empty {s}", consumers, open_phases=1) for s in range(stages)]
    ds_full = Barrier("dS full", consumers)
    dq_full, dq_empty = Barrier("dQ full", consumers), Barrier("dQ empty", open_phases=1)
    buffer: dict[Any, Any] = {}

    def producer() -> Program:
        for matrix in (k, v):
            buffer[matrix.name] = yield Load(matrix.tile(0, n))
            yield Arrive(kv_full, after=buffer[matrix.name])
        for position, row in enumerate(rows):
            stage = position % stages
            for matrix, numbers, full, empty in ((q, lse, q_full, q_empty), (do, d, do_full, do_empty)):
                yield Await(empty[stage])
                for x, tile in ((matrix, matrix.tile(row, m)), (numbers, numbers.tile(0, 1, row, m))):
                    buffer[x.name, stage] = yield Load(tile)
                    yield Arrive(full[stage], after=buffer[x.name, stage])

    def consumer(warpgroup: int) -> Program:
        first_key, first_col = warpgroup * own_keys, warpgroup * own_cols
        keys = max(0, min(own_keys, k.rows - first_key))
        cols = max(0, min(own_cols, k.cols - first_col))
        dk_block: Any = np.zeros((keys, k.cols), np.float32)
        dv_block: Any = np.zeros((keys, v.cols), np.float32)

        def transposed_p(scores: Array, lse_row: Array, row: int) -> Array:
            return probabilities(scores.T * np.float32(scale), lse_row, first_key, diagonal + row).T

        yield Await(kv_full)
        k_rows = yield Vector(lambda tile: tile[first_key : first_key + keys], (buffer[k.name],))
        v_rows = yield Vector(lambda tile: tile[first_key : first_key + keys], (buffer[v.name],))
        k_cols = yield Vector(lambda tile: tile[:, first_col : first_col + cols], (buffer[k.name],))
        for position, row in enumerate(rows):
            stage = position % stages
            yield Await(q_full[stage])
            q_tile, lse_row = buffer[q.name, stage], buffer[lse.name, stage]
            scores = yield Matmul(k_rows, q_tile, (own_keys, m, q.cols), transpose_b=True, asynchronous=True)
            yield Await(do_full[stage])
            do_tile, d_row = buffer[do.name, stage], buffer[d.name, stage]
            dp = yield Matmul(v_rows, do_tile, (own_keys, m, v.cols), transpose_b=True, asynchronous=True)
            yield Wait(scores)
            p = yield Vector(
                lambda s, lse_row, row=row: transposed_p(s, lse_row, row),
                (scores, lse_row),
                exps=own_keys * m,
                instructions=P_INSTRUCTIONS * own_keys * m,
            )
            yield Wait(dp)
            ds = yield Vector(
                lambda p, dp, d_row: score_gradient(p.T, dp.T, d_row).T,
                (p, dp, d_row),
                instructions=DS_INSTRUCTIONS * own_keys * m,
                shared_bytes=2 * own_keys * m * q.dtype.element_bytes,
            )
            dv_block = yield Matmul(p, do_tile, (own_keys, v.cols, m), dv_block, a_in_registers=True, asynchronous=True)
            # dQ needs dS of all keys: each warpgroup leaves its share in shared memory, and takes some of the columns.
            buffer["dS", warpgroup, position % DS_BUFFERS] = ds
            yield Arrive(ds_full)
            yield Await(ds_full)
            parts = tuple(buffer["dS", w, position % DS_BUFFERS] for w in range(consumers))
            all_ds = yield Vector(lambda *parts: np.concatenate(parts).T, parts)
            dq_part = yield Matmul(all_ds, k_cols, (m, own_cols, n), asynchronous=True)
            yield Wait(dv_block)
            yield Arrive(do_empty[stage])
            dk_block = yield Matmul(ds, q_tile, (own_keys, k.cols, m), dk_block, a_in_registers=True, asynchronous=True)
            yield Wait(dq_part)
            yield Await(dq_empty)
            buffer["dQ", warpgroup] = yield Vector(
                lambda x: x, (dq_part,), instructions=m * own_cols, shared_bytes=2 * 4 * m * own_cols
            )
            yield Arrive(dq_full)
            yield Wait(dk_block)
            yield Arrive(q_empty[stage])
        dk_block = yield Vector(lambda x: x * np.float32(scale), (dk_block,), instructions=own_keys * (k.cols + v.cols))
        for matrix, value in ((dk, dk_block), (dv, dv_block)):
            tile = matrix.tile(first_key, own_keys)
            yield Reduce(tile, value) if grouped else Store(tile, value)

    def writer() -> Program:
        for row in rows:
            yield Await(dq_full)
            parts = tuple(buffer["dQ", w] for w in range(consumers))
            whole = yield Vector(lambda *parts: np.concatenate(parts, axis=1), parts)
            yield Reduce(dq_sum.tile(row, m), whole)
            yield Arrive(dq_empty)

    return producer(), *(consumer(w) for w in range(consumers)), writer()


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
