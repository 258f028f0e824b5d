"""FlashAttention-3 forward (Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2): warp-specialised, for Hopper.

A producer warpgroup copies K and V through `stages` shared-memory buffers; each consumer warpgroup owns 64 query rows
(`traces.flash3_program`). Within a warpgroup S_{j+1} = Q K_{j+1}^T runs on the tensor cores together with O += P_j V_j,
and both run under the other warpgroups' softmax. CTAs are persistent: one per SM loops over query blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.dtypes import DTYPES
from traces.flash3_block import ROWS_PER_WARPGROUP, BlockShape
from traces.flash3_program import flash3_block
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Program
from traces.problem import AttentionProblem
from traces.query_blocks import CTA_ORDERS, FEATURES, QueryBlocks, query_block_bytes
from traces.schedule import KV_ORDERS, Schedule, require, require_multiple, require_one_of
from traces.tensor import Matrix, Tensor, TensorTable, View
from traces.traffic import Traffic, blocks, read_once, written_once

name = "flash3"
summary = "FlashAttention-3 forward: persistent CTAs, a producer and ping-pong consumer warpgroups (Hopper)"
paper = "Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2"
order = 30

REGISTERS = 65536
"""32-bit registers of an SM: a CTA takes them all, and its consumers most of them."""


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
        cluster: 1, or 2: two CTAs take neighbouring query blocks of a head and multicast K and V to each other. Not
            with a causal mask, under which they would not read the same keys.
        overlap: whether a warpgroup runs S_{j+1} = Q K_{j+1}^T together with O += P_j V_j (algorithm 2), or one product
            after the other (algorithm 1).
        ping_pong: whether warpgroups take turns at issuing their products, so that the softmax of one runs under those
            of the others.
        p_in_shared: P goes to its product through shared memory, where tiles are too large to keep it in registers.
        persistent_ctas: CTAs launched; each fetches query blocks from a shared counter until none is left.
        instruction: tensor-core family.
    """

    tile_q: int = 128
    tile_kv: int = 128
    stages: int = 2
    kv_order: str = "backward"
    cta_order: str = "m_fastest"
    section_heads: int = 0
    cluster: int = 1
    overlap: bool = True
    ping_pong: bool = True
    p_in_shared: bool = False
    persistent_ctas: int = 132
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        require_multiple("tile_q", self.tile_q, ROWS_PER_WARPGROUP)
        require_multiple("tile_kv", self.tile_kv, 8)
        require(1 <= self.stages <= 8, f"schedule key stages must be 1 to 8, not {self.stages}")
        require(self.cluster in (1, 2), f"schedule key cluster must be 1 or 2, not {self.cluster}")
        require(self.section_heads >= 0, f"schedule key section_heads must be at least 0, not {self.section_heads}")
        require_multiple("persistent_ctas", self.persistent_ctas, self.cluster)
        require_one_of("kv_order", self.kv_order, KV_ORDERS)
        require_one_of("cta_order", self.cta_order, CTA_ORDERS)
        require_one_of("instruction", self.instruction, ("wgmma",))


Schedule_ = Flash3Schedule

_TILES_16 = ((64, 192, 192), (96, 192, 144), (128, 128, 176), (192, 128, 112), (640, 128, 80))
_TILES_8 = ((64, 192, 160), (96, 192, 128), (128, 128, 224), (192, 128, 160), (640, 128, 128))
"""(largest head dimension, tile_q, tile_kv) of the CUDA release, for 16-bit and 8-bit formats."""


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> Flash3Schedule:
    """Tiles, order and clusters of the CUDA release by head dimension, format and mask."""
    d, causal, fp8 = max(problem.dim, problem.dim_v), problem.causal, problem.storage.element_bytes == 1
    tile_q, tile_kv = next(tiles for largest, *tiles in (_TILES_8 if fp8 else _TILES_16) if d <= largest)
    if causal and not fp8 and (d <= 64 or 96 < d <= 128):
        tile_kv = 128
    p_in_shared = not fp8 and (64 < d <= 96 or (d <= 64 and not causal))
    if problem.kv_storage.element_bytes == 4:
        tile_kv = max(8, tile_kv // 2 // 8 * 8 - 16)
    wide = 128 < d <= 192 if fp8 else d >= 128
    paired = wide and not causal and sm_count % 2 == 0 and blocks(problem.seq, tile_q) % 2 == 0
    return Flash3Schedule(
        tile_q=tile_q,
        tile_kv=tile_kv,
        cta_order="swizzled" if causal else "m_fastest",
        cluster=2 if paired else 1,
        ping_pong=d >= 128 if fp8 else d <= 128,
        p_in_shared=p_in_shared,
        persistent_ctas=sm_count,
    )


def plan(problem: AttentionProblem, schedule: Flash3Schedule) -> Plan:
    """Tensors and the single persistent launch."""
    p, s = problem, schedule
    p.require(FEATURES)
    require(s.cluster == 1 or not p.causal, f"schedule key cluster is {s.cluster}, but a causal mask needs 1")
    query_blocks = QueryBlocks(
        p,
        tile_q=s.cluster * s.tile_q,
        tile_kv=s.tile_kv,
        cta_order=s.cta_order,
        kv_order=s.kv_order,
        section_heads=s.section_heads,
    )
    scales = Scales(p, query_blocks.tensors)

    def work(number: int) -> Sequence[WorkItem]:
        pair, rank = divmod(number, s.cluster)
        return [part for item in query_blocks.items(pair) for part in _part(item, rank, s.tile_q, scales)]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        diagonal, backward, multicast, share = parameters
        shape = BlockShape(
            scale=p.scale,
            tile_q=s.tile_q,
            tile_kv=s.tile_kv,
            stages=s.stages,
            overlap=s.overlap,
            ping_pong=s.ping_pong,
            p_in_shared=s.p_in_shared,
            keys=matrices[1].rows,
            diagonal=diagonal,
            window=p.window,
            backward=bool(backward),
            multicast=multicast,
            share=share,
        )
        return flash3_block(matrices, shape)

    queue = s.cluster * len(query_blocks)
    threads = 128 * (1 + s.tile_q // ROWS_PER_WARPGROUP)
    resources = CtaResources(threads, REGISTERS // threads // 8 * 8, _shared_bytes(p, s))
    ctas = min(s.persistent_ctas, queue)
    launch = KernelLaunch(
        "flash3_forward", ctas, resources, work, agents, s.instruction, warps=4, cluster=s.cluster, queue=queue
    )
    return Plan(name, p, s, scales.tensors, (launch,), ("Q", "K", "V", *scales.names), ("O", "LSE"))


class Scales:
    """With FP8, what Q, K and V are to be multiplied with: an fp32 number each per KV head of a sequence, or of a pack.

    Args:
        problem: whether there are any.
        tensors: those before, Q, K, …
    """

    def __init__(self, problem: AttentionProblem, tensors: Sequence[Tensor]) -> None:
        self.names = ("Q_scale", "K_scale", "V_scale") if problem.storage.quantised else ()
        table = TensorTable(tensors)
        keys = tensors[1]
        shape = (keys.batch, keys.heads, 1, 1)
        self._own = [table.add(name, shape, DTYPES["fp32"]) for name in self.names]
        self.tensors = table.tensors

    def views(self, keys: View) -> tuple[View, ...]:
        """Those that go with a view of K."""
        return tuple(t.view(keys.batch, keys.head) for t in self._own)


def _part(item: WorkItem, rank: int, tile_q: int, scales: Scales) -> list[WorkItem]:
    """What the CTA of cluster rank `rank` does of its cluster's query rows; nothing where they end before its own."""
    q, k, v, o, lse = item.views
    diagonal, backward = item.parameters
    first = rank * tile_q
    if first >= q.rows:
        return []
    views = (q.window(first, tile_q), k, v, o.window(first, tile_q), lse.window(0, 1, first, tile_q))
    parameters = (diagonal + first, backward, blocks(q.rows, tile_q), rank)
    return [WorkItem((*views, *scales.views(k)), parameters)]


def _shared_bytes(p: AttentionProblem, s: Flash3Schedule) -> int:
    """Buffers of Q, K and V; of transposed V with 8 bits; of P where it does not stay in registers."""
    k_bytes, v_bytes = p.dim * p.kv_storage.element_bytes, p.dim_v * p.v_storage.element_bytes
    stage = s.tile_kv * (k_bytes + v_bytes * (2 if p.storage.quantised else 1))
    probabilities = s.tile_q * s.tile_kv * p.v_storage.element_bytes if s.p_in_shared else 0
    return s.tile_q * p.dim * p.storage.element_bytes + s.stages * stage + probabilities


def textbook(plan: Plan) -> Traffic:
    """8Nd bytes per fp16 head: Q, K and V read, O written; LSE is left out."""
    return read_once(plan, "Q", "K", "V") | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Every query block reads the keys and values its rows attend to; with FP8, each of its warpgroups the scales."""
    p, tile_q = plan.problem, plan.schedule.tile_q
    query_blocks = p.heads * sum(blocks(p.rows(b), tile_q) for b in range(p.batch))
    scales = {
        name: (4 * query_blocks * tile_q // ROWS_PER_WARPGROUP, 0) for name in plan.inputs if name.endswith("_scale")
    }
    return query_block_bytes(plan, tile_q, plan.schedule.tile_kv) | scales
