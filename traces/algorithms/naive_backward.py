"""The gradients of attention as products and row work in global memory, from P as the forward pass left it.

"Standard attention backward pass", algorithm 3 of the FlashAttention paper (Dao et al. 2022, arXiv:2205.14135), in the
order of PyTorch's automatic differentiation: dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(dP P)), dK = dS^T Q and
dQ = dS K. With `saved=none` only Q, K and V were kept, and S and P are computed again first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from traces.algorithms.naive import softmax_rows
from traces.gemm_grid import Tiling, gemm_launch
from traces.gradients import OUTPUTS, Array, Operand, per_query_head, sum_heads
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.softmax import RowMask
from traces.tensor import Matrix, Tensor, TensorTable, View
from traces.three_kernels import ThreeKernelSchedule, scores_kernel, softmax_kernel
from traces.traffic import Traffic, blocks, read_once, sizes, written_once

name = "naive_backward"
summary = "five kernels: dV, dP, dS, dK, dQ; P, dP and dS go through global memory"
paper = "Dao et al. 2022, arXiv:2205.14135, algorithm 3"
order = 100

SAVED = ("p", "none")
PRODUCTS = ("dv", "dp", "dk", "dq")


@dataclass(frozen=True, slots=True)
class NaiveBackwardSchedule(Schedule):
    """Tiles of the GEMMs and of the row work.

    Attributes:
        saved: what the forward pass left besides its inputs: p, or none (S and P are computed again).
        qk, dv, dp, dk, dq: tiling of each GEMM, as `traces.gemm_grid.Tiling.parse` reads it: output tile, k step and
            stages, and where they are not 1x1, along_m and 0 its cluster, raster and swizzle: 256x128x64x4/2x1/along_n.
        fuse: whether one kernel turns dP into dS, or two do (dP P, then the rest), as in PyTorch.
        multiply_elements: elements per CTA of the first of the two.
        persistent, persistent_ctas: whether CTAs of the GEMMs fetch tiles from a shared counter, and how many.
        gemm_threads, softmax_threads: threads per CTA.
        softmax_rows: rows per CTA of the row work.
        softmax_instructions: fp32 instructions per element of a row kernel (see `ThreeKernelSchedule`).
        instruction: tensor-core family, wgmma or mma_sync.
    """

    saved: str = "p"
    qk: str = "128x128x64x4"
    dv: str = "128x128x64x4"
    dp: str = "128x128x64x4"
    dk: str = "128x128x64x4"
    dq: str = "128x128x64x4"
    fuse: bool = True
    multiply_elements: int = 1024
    persistent: bool = True
    persistent_ctas: int = 132
    gemm_threads: int = 384
    softmax_threads: int = 1024
    softmax_rows: int = 1
    softmax_instructions: int = 24
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        require_one_of("saved", self.saved, SAVED)
        for key in ("qk", *PRODUCTS):
            self.tiling(key)
        for key in ("multiply_elements", "persistent_ctas", "softmax_rows"):
            require(getattr(self, key) >= 1, f"schedule key {key} must be at least 1, not {getattr(self, key)}")
        for key in ("gemm_threads", "softmax_threads"):
            require_multiple(key, getattr(self, key), 32)
        require_one_of("instruction", self.instruction, ("wgmma", "mma_sync"))

    def tiling(self, product: str) -> Tiling:
        """How one GEMM is tiled."""
        return Tiling.parse(product, getattr(self, product))

    @property
    def workers(self) -> int:
        """CTAs of a persistent GEMM; 0 with one CTA per tile."""
        return self.persistent_ctas if self.persistent else 0


Schedule_ = NaiveBackwardSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> NaiveBackwardSchedule:
    """CUTLASS-like 128x128 tiles; those of dV, dK and dQ cover the head dimension where that is less."""
    by_key, by_value = (f"128x{min(128, -(-d // 8) * 8)}x64x4" for d in (problem.dim, problem.dim_v))
    return NaiveBackwardSchedule(dv=by_value, dk=by_key, dq=by_key, persistent_ctas=sm_count, instruction=instruction)


def plan(problem: AttentionProblem, schedule: NaiveBackwardSchedule) -> Plan:
    """Tensors and launches."""
    p, s = problem, schedule
    p.require(("dim_v",))
    table = TensorTable()
    queries, keys, square = (p.batch, p.heads, p.seq), (p.batch, p.kv_heads, p.seq_kv), p.seq_kv
    q = table.add("Q", (*queries, p.dim), p.storage, p.layout)
    k = table.add("K", (*keys, p.dim), p.kv_storage, p.layout)
    v = table.add("V", (*keys, p.dim_v), p.v_storage, p.layout)
    scores = table.add("S", (*queries, square), p.storage) if s.saved == "none" else None
    probs = table.add("P", (*queries, square), p.storage)
    do = table.add("dO", (*queries, p.dim_v), p.storage, p.layout)
    dp = table.add("dP", (*queries, square), p.storage)
    product = dp if s.fuse else table.add("dP_P", (*queries, square), p.storage)
    ds = table.add("dS", (*queries, square), p.storage)
    dq = table.add("dQ", (*queries, p.dim), p.storage, p.layout)
    dk = table.add("dK", (*keys, p.dim), p.kv_storage, p.layout)
    dv = table.add("dV", (*keys, p.dim_v), p.v_storage, p.layout)
    dk_heads, dv_heads = (per_query_head(table, p, x) for x in (dk, dv))

    def gemm(key: str, rows: int, cols: int, a: Operand, b: Operand, c: Operand, scale: float = 1.0) -> KernelLaunch:
        """One product of every head: `rows` x `cols` outputs; operands are cut along rows, columns, or not at all."""
        tiling = s.tiling(key)
        grid = tiling.grid(p.batch, p.heads, rows, cols, s.workers)

        def views(b_: int, h: int, row: int, col: int) -> tuple[View, ...]:
            return tuple(x.view(p, b_, h, (row, tiling.rows), (col, tiling.cols)) for x in (a, b, c))

        return gemm_launch(
            key,
            grid,
            views,
            tile_k=tiling.k,
            stages=tiling.stages,
            threads=s.gemm_threads,
            instruction=s.instruction,
            operand_bytes=(a.tensor.dtype.element_bytes, b.tensor.dtype.element_bytes),
            transpose_a=a.rows == "",
            transpose_b=b.rows == "n",
            scale=scale,
        )

    row_work = (
        [_score_gradient(p, s, probs, dp, ds)]
        if s.fuse
        else [_multiply(p, s, probs, dp, product), _score_gradient(p, s, probs, product, ds)]
    )
    launches = (
        *(_recompute(p, s, q, k, scores, probs) if scores else ()),
        gemm("dv", p.seq_kv, p.dim_v, Operand(probs, "", "m"), Operand(do, "", "n"), Operand(dv_heads, "m", "n")),
        gemm("dp", p.seq, p.seq_kv, Operand(do, "m", ""), Operand(v, "n", ""), Operand(dp, "m", "n")),
        *row_work,
        gemm("dk", p.seq_kv, p.dim, Operand(ds, "", "m"), Operand(q, "", "n"), Operand(dk_heads, "m", "n"), p.scale),
        gemm("dq", p.seq, p.dim, Operand(ds, "m", ""), Operand(k, "", "n"), Operand(dq, "m", "n"), p.scale),
        *sum_heads(p, dk_heads, dk, 64),
        *sum_heads(p, dv_heads, dv, 64),
    )
    inputs = ("Q", "K", "V", "dO") if scores else ("Q", "K", "V", "P", "dO")
    return Plan(name, p, schedule, table.tensors, launches, inputs, OUTPUTS, "backward")


def _recompute(
    p: AttentionProblem, s: NaiveBackwardSchedule, q: Tensor, k: Tensor, scores: Tensor, probs: Tensor
) -> tuple[KernelLaunch, KernelLaunch]:
    """S = QK^T and P = softmax(S) as in the forward pass."""
    qk = s.tiling("qk")
    forward = ThreeKernelSchedule(
        tile_q=qk.rows,
        tile_kv=qk.cols,
        tile_k=qk.k,
        stages=qk.stages,
        cluster_m=qk.cluster_rows,
        cluster_n=qk.cluster_cols,
        raster=qk.raster,
        swizzle=qk.swizzle,
        persistent=s.persistent,
        persistent_ctas=s.persistent_ctas,
        gemm_threads=s.gemm_threads,
        softmax_threads=s.softmax_threads,
        softmax_rows=s.softmax_rows,
        softmax_instructions=s.softmax_instructions,
        instruction=s.instruction,
    )

    def softmax(s_rows: Matrix, p_rows: Matrix, mask: RowMask) -> Program:
        return softmax_rows(s_rows, p_rows, mask, s.softmax_instructions)

    return scores_kernel(p, forward, q, k, scores), softmax_kernel(p, forward, scores, probs, softmax, 0)


def _score_gradient(
    p: AttentionProblem, s: NaiveBackwardSchedule, probs: Tensor, factor: Tensor, ds: Tensor
) -> KernelLaunch:
    """dS of a few rows per CTA, from P and dP, or from P and their product."""
    fused = factor.name == "dP"

    def gradient(x: Array, y: Array) -> Array:
        product = x * y if fused else y
        return (product - x * product.sum(axis=1, keepdims=True, dtype=np.float32)).astype(np.float32)

    row_blocks = blocks(p.seq, s.softmax_rows)

    def work(cta: int) -> Sequence[WorkItem]:
        matrix, block = divmod(cta, row_blocks)
        place = divmod(matrix, p.heads)
        cut = tuple(x.view(*place).window(block * s.softmax_rows, s.softmax_rows) for x in (probs, factor, ds))
        return [WorkItem(cut, ())]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (two_to_one(matrices, gradient, s.softmax_instructions),)

    warps = s.softmax_threads // 32
    resources = CtaResources(s.softmax_threads, 32, 4 * warps)
    return KernelLaunch("ds", p.batch * p.heads * row_blocks, resources, work, agents, warps=warps)


def _multiply(p: AttentionProblem, s: NaiveBackwardSchedule, probs: Tensor, dp: Tensor, out: Tensor) -> KernelLaunch:
    """dP P, a piece of a row per CTA."""
    pieces = blocks(p.seq_kv, s.multiply_elements)

    def work(cta: int) -> Sequence[WorkItem]:
        rest, piece = divmod(cta, pieces)
        matrix, row = divmod(rest, p.seq)
        place = divmod(matrix, p.heads)
        window = (row, 1, piece * s.multiply_elements, s.multiply_elements)
        return [WorkItem(tuple(x.view(*place).window(*window) for x in (probs, dp, out)), ())]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (two_to_one(matrices, np.multiply, 4),)

    ctas = p.batch * p.heads * p.seq * pieces
    return KernelLaunch("multiply", ctas, CtaResources(128, 32, 0), work, agents, warps=4)


def two_to_one(matrices: tuple[Matrix, ...], function: Callable[..., Array], instructions: int) -> Program:
    """Read two matrices, compute a third element by element or row by row, and write it."""
    a, b, c = matrices
    x = yield Load(a.tile(0, a.rows))
    y = yield Load(b.tile(0, b.rows))
    yield Wait(x)
    yield Wait(y)
    result = yield Vector(function, (x, y), instructions=instructions * c.rows * c.cols)
    yield Store(c.tile(0, c.rows), result)


def textbook(plan: Plan) -> Traffic:
    """14N^2 + 16Nd bytes per fp16 head: P and dP twice, dS three times; dO twice, Q, K and V once, and the results.

    With P recomputed 6N^2 more: S written and read, P written; and Q and K once more.
    """
    size = sizes(plan)
    again = plan.schedule.saved == "none"
    square = {
        "P": (2 * size["P"], size["P"] if again else 0),
        "dP": (size["dP"],) * 2,
        "dS": (2 * size["dS"], size["dS"]),
    }
    read = {"Q": ((1 + again) * size["Q"], 0), "K": ((1 + again) * size["K"], 0), "dO": (2 * size["dO"], 0)}
    saved = {"S": (size["S"], size["S"])} if again else {}
    return read | read_once(plan, "V") | square | saved | written_once(plan, *OUTPUTS)


def sm_port(plan: Plan) -> Traffic:
    """Every GEMM re-reads A per column of output tiles and B per row of them and query head; masks skip nothing."""
    p, s, size = plan.problem, plan.schedule, sizes(plan)
    down = {key: blocks(p.seq_kv if key in ("dv", "dk") else p.seq, s.tiling(key).rows) for key in ("qk", *PRODUCTS)}
    across = {
        key: blocks({"dv": p.dim_v, "dk": p.dim, "dq": p.dim}.get(key, p.seq_kv), s.tiling(key).cols)
        for key in ("qk", *PRODUCTS)
    }
    again = s.saved == "none"
    row_reads = 1 if s.fuse else 2
    found = {
        "Q": (size["Q"] * (down["dk"] + again * across["qk"]), 0),
        "K": (size["K"] * p.group * (down["dq"] + again * down["qk"]), 0),
        "V": (size["V"] * p.group * down["dp"], 0),
        "P": (size["P"] * (across["dv"] + row_reads), again * size["P"]),
        "dO": (size["dO"] * (down["dv"] + across["dp"]), 0),
        "dP": (size["dP"], size["dP"]),
        "dS": (size["dS"] * (across["dk"] + across["dq"]), size["dS"]),
        **written_once(plan, *OUTPUTS),
    }
    extra = (["S"] if again else []) + ([] if s.fuse else ["dP_P"]) + (["dK_heads", "dV_heads"] if p.group > 1 else [])
    return found | {x: (size[x], size[x]) for x in extra}
