"""FlashAttention forward (Dao et al. 2022, arXiv:2205.14135, algorithm 1), with the tiles of its CUDA release.

One CTA per head: the outer loop keeps a block of K and V on chip, the inner loop brings every block of query rows past
it. O and the row log-sum-exp are unfinished until the last key block, so they go to memory and back on every pass: O in
fp32, already divided by its row sum, and the log-sum-exp, which stands for maximum and sum of the rows so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Matmul, Program, Store, Vector, Wait, find_place
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple
from traces.softmax import NO_MASK, ONLINE_INSTRUCTIONS, finish, mask_scores, online_step
from traces.tensor import Matrix, TensorTable
from traces.traffic import Traffic, blocks, read_once, sizes, written_once

name = "flash1"
summary = "FlashAttention forward: one CTA per head, K and V blocks outside, query blocks inside; O revisits memory"
paper = "Dao et al. 2022, arXiv:2205.14135, algorithm 1"
order = 10

COPY_CHAIN, EXCHANGE_CHAIN, FINISH_CHAIN = 75, 110, 165
"""Instructions one after another of a query block, under which nothing runs: to start its copies (340 cycles on an
H200), for the row maxima that the warps exchange, P, and its sums (710 of 128 keys, 570 of 64), and for sums and LSE of
its rows (750). `python -m kernels_cupy flash1 --stamps FILE`, less what copies and products take."""

MAX_REGISTERS = 255
OTHER_REGISTERS = 64
"""Registers of a thread besides its share of S and O: fragments of Q, K and V, row statistics, addresses; estimate."""

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Flash1Schedule(Schedule):
    """Tiles of FlashAttention-1.

    Attributes:
        tile_q: query rows per inner step (Br).
        tile_kv: key/value rows per outer step (Bc).
        stages: query blocks in shared memory: with 2, the next one is copied while this one is worked on.
        warps: warps per CTA; those that have no 16 rows of S for themselves share columns, of S and then of O.
    """

    tile_q: int = 16
    tile_kv: int = 256
    stages: int = 2
    warps: int = 4

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, 16)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(1 <= self.warps <= 32, f"schedule key warps must be 1 to 32, not {self.warps}")


Schedule_ = Flash1Schedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash1Schedule:
    """The release's 16 query rows on 256 keys for d up to 64, 128 up to 128; beyond, as many as take that memory."""
    d = problem.dim
    return Flash1Schedule(tile_kv=256 if d <= 64 else 128 if d <= 128 else 128 * 128 // d // 8 * 8)


def paper_tiles(sram_bytes: int, dim: int, element_bytes: int) -> tuple[int, int]:
    """(Br, Bc) of algorithm 1, line 1: Bc = ceil(M / 4d), Br = min(Bc, d), with M the elements that SRAM holds."""
    key_rows = -(-sram_bytes // (4 * dim * element_bytes))
    return min(key_rows, dim), key_rows


def query_blocks(rows: int, keys: int, diagonal: int, schedule: Flash1Schedule) -> Iterator[tuple[int, int, int]]:
    """(first row, rows, outer steps that it takes part in) of every query block.

    The steps are those of the key blocks that its last row sees, and always the first, where O and LSE are born.
    """
    for row in range(0, rows, schedule.tile_q):
        end = min(row + schedule.tile_q, rows)
        yield row, end - row, max(1, blocks(min(keys, end + diagonal), schedule.tile_kv))


def plan(problem: AttentionProblem, schedule: Flash1Schedule) -> Plan:
    """Tensors and the single launch. `O_running` has the rows that see more than one key block: a head's last ones."""
    p = problem
    p.require()
    diagonal = p.diagonal if p.causal else NO_MASK
    unfinished = sum(rows for _, rows, steps in query_blocks(p.seq, p.seq_kv, diagonal, schedule) if steps > 1)
    table = TensorTable()
    q = table.add("Q", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
    k = table.add("K", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
    v = table.add("V", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
    o = table.add("O", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
    lse = table.add("LSE", (p.batch, p.heads, 1, p.seq), DTYPES["fp32"])
    running = [table.add("O_running", (p.batch, p.heads, unfinished, p.dim), DTYPES["fp32"])] if unfinished else []

    def work(cta: int) -> Sequence[WorkItem]:
        b, h = divmod(cta, p.heads)
        own, shared = [t.view(b, h) for t in (o, lse, *running)], [t.view(b, h // p.group) for t in (k, v)]
        return [WorkItem((q.view(b, h), *shared, *own), (diagonal,))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (flash1_head(matrices, parameters[0], p.scale, schedule),)

    threads = 32 * schedule.warps
    registers = OTHER_REGISTERS + schedule.tile_q * (schedule.tile_kv + p.dim) // threads
    query_bytes = schedule.tile_q * (p.dim * (p.storage.element_bytes + 4) + 4)  # Q, O and LSE
    exchanged = schedule.tile_q * (schedule.tile_kv * p.storage.element_bytes + 8 * schedule.warps)  # P, maxima, sums
    shared = schedule.stages * query_bytes + 2 * schedule.tile_kv * p.dim * p.kv_storage.element_bytes + exchanged
    resources = CtaResources(threads, min(registers, MAX_REGISTERS), shared)
    warps, columns = schedule.warps, schedule.warps // row_warps(schedule)
    launch = KernelLaunch(
        "flash1_forward", p.batch * p.heads, resources, work, agents, "mma_sync", warps, warp_columns=columns
    )
    return Plan(name, p, schedule, table.tensors, (launch,), ("Q", "K", "V"), ("O", "LSE"))


def row_warps(schedule: Flash1Schedule) -> int:
    """Warps along the rows of a product of mma.sync, which has 16; others share the columns."""
    return min(schedule.warps, schedule.tile_q // 16)


def flash1_head(matrices: tuple[Matrix, ...], diagonal: int, scale: float, schedule: Flash1Schedule) -> Program:
    """One head, algorithm 1. Within an outer step, `stages` - 1 query blocks are copied ahead, as in the release."""
    q, k, v, o, lse, *scratch = matrices
    tile_q, tile_kv, d = schedule.tile_q, schedule.tile_kv, v.cols
    finished = q.rows - (scratch[0].rows if scratch else 0)  # rows before those of O_running

    def fetch(step: int, row: int, rows: int) -> Program:
        q_tile = yield Load(q.tile(row, rows))
        if step == 0:
            return q_tile, np.full((1, rows), -np.inf, np.float32), np.zeros((rows, d), np.float32)
        return q_tile, (yield Load(lse.tile(0, 1, row, rows))), (yield Load(scratch[0].tile(row - finished, rows)))

    for step, first_key in enumerate(range(0, k.rows, tile_kv)):
        k_tile = yield Load(k.tile(first_key, tile_kv))
        v_tile = yield Load(v.tile(first_key, tile_kv))
        visible = [block for block in query_blocks(q.rows, k.rows, diagonal, schedule) if block[2] > step]
        fetched: list[Any] = []
        for number, (row, rows, steps) in enumerate(visible):
            yield find_place(COPY_CHAIN)
            while len(fetched) < min(number + schedule.stages, len(visible)):
                fetched.append((yield from fetch(step, *visible[len(fetched)][:2])))
            q_tile, row_lse, output = fetched[number]
            fetched[number] = None
            if number == 0:
                yield Wait(k_tile)
            yield Wait(q_tile)
            scores = yield Matmul(q_tile, k_tile, (tile_q, tile_kv, d), transpose_b=True)
            if step > 0:
                yield Wait(row_lse)
                yield Wait(output)
            state = yield Vector(
                lambda s, before, acc, first=first_key, end=row + diagonal: resume(
                    mask_scores(s * np.float32(scale), first, end), before, acc
                ),
                (scores, row_lse, output),
                exps=tile_q * tile_kv,
                instructions=ONLINE_INSTRUCTIONS * tile_q * tile_kv + (tile_q * d if step > 0 else 0),
                shared_bytes=2 * tile_q * tile_kv * q.dtype.element_bytes,  # P: every warp needs all of it
                results=4,
                chain=EXCHANGE_CHAIN,
            )
            probabilities, maximum, total, output = state
            if number == 0:
                yield Wait(v_tile)
            output = yield Matmul(probabilities, v_tile, (tile_q, d, tile_kv), output)
            output, row_lse = yield Vector(
                finish, (maximum, total, output), instructions=2 * tile_q * d, results=2, chain=FINISH_CHAIN
            )
            last = step == steps - 1
            yield Store(o.tile(row, rows) if last else scratch[0].tile(row - finished, rows), output)
            yield Store(lse.tile(0, 1, row, rows), row_lse)


def resume(scores: Array, row_lse: Array, output: Array) -> tuple[Array, Array, Array, Array]:
    """An online-softmax step from what memory has of the rows: their LSE [1, rows] and normalised O.

    They are one key of score LSE and value O: maximum LSE and sum 1, or -inf and 0 before any key is seen.
    """
    maximum = row_lse.T
    return online_step(scores, maximum, np.isfinite(maximum).astype(np.float32), output)


def textbook(plan: Plan) -> Traffic:
    """K and V once; Q and O once per outer step, O both ways after the first: Theta(N^2 d^2 / M) (theorem 2).

    There are Tc = N / Bc outer steps, and Bc = M / 4d for an SRAM of M elements; so Q and O move about 3 N d Tc, which
    is 12 N^2 d^2 / M, elements. They fall as 1 / M until Tc = 1 and 4 N d, the compulsory traffic, is left. As in the
    paper, O has the storage format all the time, nothing is masked, and the row statistics are left out.
    """
    size, steps = sizes(plan), blocks(plan.problem.seq_kv, plan.schedule.tile_kv)
    passes = {"Q": (size["Q"] * steps, 0), "O": (size["O"] * (steps - 1), size["O"] * steps)}
    return read_once(plan, "K", "V") | passes


def sm_port(plan: Plan) -> Traffic:
    """Every query block comes by once per key block that it sees; K and V once per query head.

    Without a mask, per head and in bytes: Q e N d Tc; O_running 4 N d (Tc - 1) each way; O e N d; LSE 4 N (Tc - 1) in
    and 4 N Tc out; with Tc = N / Bc it is the Theta(N^2 d^2 / M) of `textbook`, in which O counts 4 bytes for e.
    """
    p, size = plan.problem, sizes(plan)
    diagonal = p.diagonal if p.causal else NO_MASK
    visits = [(rows, steps) for _, rows, steps in query_blocks(p.seq, p.seq_kv, diagonal, plan.schedule)]
    heads = p.batch * p.heads
    passes = heads * sum(rows * steps for rows, steps in visits)
    revisits = passes - heads * p.seq
    moved = {
        "Q": (passes * p.dim * p.storage.element_bytes, 0),
        "K": (size["K"] * p.group, 0),
        "V": (size["V"] * p.group, 0),
        "LSE": (4 * revisits, 4 * passes),
    }
    if revisits:
        moved["O_running"] = (4 * p.dim * revisits, 4 * p.dim * revisits)
    return moved | written_once(plan, "O")
