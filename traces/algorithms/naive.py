"""Attention as three kernels, S = QK^T, P = softmax(S), O = PV, with S and P in global memory.

What PyTorch's matmul, softmax, matmul does, and "Standard Attention", algorithm 0 of the FlashAttention paper
(Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traces.gemm import gemm_tile
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.softmax import NO_MASK, mask_scores, row_softmax
from traces.tensor import Matrix, Tensor, TensorTable, View
from traces.traffic import Traffic, blocks, read_once, sizes

name = "naive"
summary = "three kernels: S = QK^T, P = softmax(S), O = PV; S and P go through global memory"
paper = "Dao et al. 2022, arXiv:2205.14135, algorithm 0"
order = 0

RASTERS = ("along_n", "along_m")


@dataclass(frozen=True, slots=True)
class NaiveSchedule(Schedule):
    """Tiles of the two GEMMs and of the softmax.

    Attributes:
        tile_q, tile_kv, tile_k: output tile and k step of QK^T (rows of S, columns of S, elements of d).
        stages: shared-memory buffers of QK^T's pipeline.
        cluster_m, cluster_n: thread-block cluster of QK^T along rows and columns of S; CTAs of a cluster multicast
            the operand they share.
        raster: which way consecutive tiles of QK^T go, along columns (`along_n`) or rows (`along_m`).
        swizzle: clusters across one strip of QK^T's raster; strips follow each other, so that one strip's operands stay
            in the L2 (0: a single strip).
        pv_tile_q, pv_tile_d, pv_tile_k, pv_stages, pv_cluster_m, pv_cluster_n, pv_raster: the same for PV.
        persistent: CTAs fetch tiles from a shared counter until none is left, instead of one tile per CTA.
        persistent_ctas: CTAs of a persistent GEMM.
        gemm_threads, softmax_threads: threads per CTA.
        softmax_rows: rows of S per softmax CTA.
        softmax_instructions: fp32 instructions per score of the row softmax kernel, in which the compiled kernel's
            address arithmetic, conversions and reductions are counted too.
        instruction: tensor-core family, wgmma or mma_sync.
    """

    tile_q: int = 128
    tile_kv: int = 128
    tile_k: int = 64
    stages: int = 4
    cluster_m: int = 1
    cluster_n: int = 1
    raster: str = "along_n"
    swizzle: int = 0
    pv_tile_q: int = 128
    pv_tile_d: int = 128
    pv_tile_k: int = 64
    pv_stages: int = 4
    pv_cluster_m: int = 1
    pv_cluster_n: int = 1
    pv_raster: str = "along_m"
    persistent: bool = True
    persistent_ctas: int = 132
    gemm_threads: int = 384
    softmax_threads: int = 1024
    softmax_rows: int = 1
    softmax_instructions: int = 24
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        for key in ("tile_q", "tile_kv", "tile_k", "pv_tile_q", "pv_tile_d", "pv_tile_k"):
            require_multiple(key, getattr(self, key), 8)
        for key in ("stages", "pv_stages", "persistent_ctas", "softmax_rows"):
            require(getattr(self, key) >= 1, f"schedule key {key} must be at least 1, not {getattr(self, key)}")
        require(self.swizzle >= 0, f"schedule key swizzle must be at least 0, not {self.swizzle}")
        for key in ("cluster_m", "cluster_n", "pv_cluster_m", "pv_cluster_n"):
            require(1 <= getattr(self, key) <= 16, f"schedule key {key} must be 1 to 16, not {getattr(self, key)}")
        for key in ("gemm_threads", "softmax_threads"):
            require_multiple(key, getattr(self, key), 32)
        require_one_of("raster", self.raster, RASTERS)
        require_one_of("pv_raster", self.pv_raster, RASTERS)
        require_one_of("instruction", self.instruction, ("wgmma", "mma_sync"))

    @property
    def workers(self) -> int:
        """CTAs of a persistent GEMM; 0 with one CTA per tile."""
        return self.persistent_ctas if self.persistent else 0


Schedule_ = NaiveSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> NaiveSchedule:
    """CUTLASS-like 128x128 tiles; PV's tile covers the head dimension."""
    tile_d = min(128, -(-problem.dim // 8) * 8)
    return NaiveSchedule(pv_tile_d=tile_d, persistent_ctas=sm_count, instruction=instruction)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The output tiles of one GEMM, and which of them each CTA computes."""

    batch: int
    heads: int
    rows: int
    cols: int
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    raster: str
    workers: int
    swizzle: int = 0

    @property
    def blocks_m(self) -> int:
        return -(-self.rows // self.tile_m)

    @property
    def blocks_n(self) -> int:
        return -(-self.cols // self.tile_n)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def clusters_per_matrix(self) -> int:
        return -(-self.blocks_m // self.cluster_m) * -(-self.blocks_n // self.cluster_n)

    @property
    def ctas(self) -> int:
        """Grid size: one CTA per tile, or `workers` (whole clusters) when persistent."""
        tiles = self.batch * self.heads * self.clusters_per_matrix * self.cluster
        return (
            tiles if self.workers == 0 else min(tiles, max(self.cluster, self.workers // self.cluster * self.cluster))
        )

    @property
    def queue(self) -> int:
        """Work indices that persistent CTAs share; 0 with one CTA per tile."""
        return self.batch * self.heads * self.clusters_per_matrix * self.cluster if self.workers else 0

    def tile_of(self, index: int) -> tuple[int, int, int, int] | None:
        """(batch, head, first row, first column) of the tile with work index cluster number x cluster + rank.

        Positions of a cluster that lie outside a ragged matrix have no tile.
        """
        number, rank = divmod(index, self.cluster)
        matrix, within = divmod(number, self.clusters_per_matrix)
        m, n = self._cluster_position(within)
        row = (m * self.cluster_m + rank // self.cluster_n) * self.tile_m
        col = (n * self.cluster_n + rank % self.cluster_n) * self.tile_n
        return (*divmod(matrix, self.heads), row, col) if row < self.rows and col < self.cols else None

    def _cluster_position(self, number: int) -> tuple[int, int]:
        """(row, column) of cluster `number` of one matrix: strips of `swizzle` clusters, each swept in raster order."""
        wide = -(-self.blocks_n // self.cluster_n)
        tall = -(-self.blocks_m // self.cluster_m)
        fast, slow = (wide, tall) if self.raster == "along_n" else (tall, wide)
        strip = min(self.swizzle or fast, fast)
        first, rest = divmod(number, strip * slow)
        across = min(strip, fast - first * strip)
        there, here = divmod(rest, across)
        position = there, first * strip + here
        return position if self.raster == "along_n" else position[::-1]

    def shares(self, row: int, col: int) -> tuple[int, int, int, int]:
        """(CTAs that multicast A, share of this one, CTAs that multicast B, share of this one) of a tile.

        The tiles of a cluster row share A, those of a cluster column share B; at a ragged edge there are fewer.
        """
        m, n = row // self.tile_m, col // self.tile_n
        share_a, share_b = n % self.cluster_n, m % self.cluster_m
        partners_a = min(self.cluster_n, self.blocks_n - (n - share_a))
        partners_b = min(self.cluster_m, self.blocks_m - (m - share_b))
        return partners_a, share_a, partners_b, share_b


def plan(problem: AttentionProblem, schedule: NaiveSchedule) -> Plan:
    """Tensors and the three launches."""
    problem.require()
    table = TensorTable()
    p = problem
    q = table.add("Q", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
    k = table.add("K", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
    v = table.add("V", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
    s = table.add("S", (p.batch, p.heads, p.seq, p.seq_kv), p.storage)
    probs = table.add("P", (p.batch, p.heads, p.seq, p.seq_kv), p.storage)
    o = table.add("O", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
    launches = (_scores(p, schedule, q, k, s), _softmax(p, schedule, s, probs), _output(p, schedule, probs, v, o))
    return Plan(name, p, schedule, table.tensors, launches, ("Q", "K", "V"), ("O",))


def _scores(p: AttentionProblem, schedule: NaiveSchedule, q: Tensor, k: Tensor, s: Tensor) -> KernelLaunch:
    tile = (schedule.tile_q, schedule.tile_kv, schedule.tile_k)
    shape = (schedule.cluster_m, schedule.cluster_n)
    grid = _Grid(
        p.batch, p.heads, p.seq, p.seq_kv, *tile[:2], *shape, schedule.raster, schedule.workers, schedule.swizzle
    )

    def views(b: int, h: int, row: int, col: int) -> tuple[View, ...]:
        return (
            q.view(b, h).window(row, tile[0]),
            k.view(b, h // p.group).window(col, tile[1]),
            s.view(b, h).window(row, tile[0], col, tile[1]),
        )

    return _gemm("qk", p, schedule, grid, tile, schedule.stages, views, transpose_b=True, scale=p.scale)


def _output(p: AttentionProblem, schedule: NaiveSchedule, probs: Tensor, v: Tensor, o: Tensor) -> KernelLaunch:
    tile = (schedule.pv_tile_q, schedule.pv_tile_d, schedule.pv_tile_k)
    shape = (schedule.pv_cluster_m, schedule.pv_cluster_n)
    grid = _Grid(p.batch, p.heads, p.seq, p.dim, *tile[:2], *shape, schedule.pv_raster, schedule.workers)

    def views(b: int, h: int, row: int, col: int) -> tuple[View, ...]:
        return (
            probs.view(b, h).window(row, tile[0]),
            v.view(b, h // p.group).window(0, p.seq_kv, col, tile[1]),
            o.view(b, h).window(row, tile[0], col, tile[1]),
        )

    return _gemm("pv", p, schedule, grid, tile, schedule.pv_stages, views, transpose_b=False, scale=1.0)


def _gemm(
    kernel: str,
    p: AttentionProblem,
    schedule: NaiveSchedule,
    grid: _Grid,
    tile: tuple[int, int, int],
    stages: int,
    views: Callable[[int, int, int, int], tuple[View, ...]],
    *,
    transpose_b: bool,
    scale: float,
) -> KernelLaunch:
    """A GEMM over the grid's tiles; `views(batch, head, row, column)` are A, B and C cut to a tile."""

    def work(index: int) -> Sequence[WorkItem]:
        position = grid.tile_of(index)
        return [] if position is None else [WorkItem(views(*position), grid.shares(*position[2:]))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        partners_a, share_a, partners_b, share_b = parameters
        return gemm_tile(
            *matrices,
            tile=tile,
            stages=stages,
            transpose_b=transpose_b,
            scale=scale,
            share_a=(partners_a, share_a),
            share_b=(partners_b, share_b),
        )

    shared = stages * (tile[0] + tile[1]) * tile[2] * p.storage.element_bytes
    resources = CtaResources(schedule.gemm_threads, 168, shared)
    warps = max(4, schedule.gemm_threads // 32 - 4)
    instruction = schedule.instruction
    return KernelLaunch(kernel, grid.ctas, resources, work, agents, instruction, warps, grid.cluster, grid.queue)


def _softmax(p: AttentionProblem, schedule: NaiveSchedule, s: Tensor, probs: Tensor) -> KernelLaunch:
    """A few rows of S per CTA: each is read once, kept on chip, normalised and written."""
    rows = schedule.softmax_rows
    blocks = -(-p.seq // rows)

    def work(cta: int) -> Sequence[WorkItem]:
        matrix, block = divmod(cta, blocks)
        b, h = divmod(matrix, p.heads)
        row = block * rows
        diagonal = row + p.diagonal if p.causal else NO_MASK
        return [WorkItem((s.view(b, h).window(row, rows), probs.view(b, h).window(row, rows)), (diagonal,))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        scores, probabilities = matrices
        return (softmax_rows(scores, probabilities, parameters[0], schedule.softmax_instructions),)

    warps = schedule.softmax_threads // 32
    resources = CtaResources(schedule.softmax_threads, 32, 4 * warps)
    return KernelLaunch("softmax", p.batch * p.heads * blocks, resources, work, agents, warps=warps)


def softmax_rows(s: Matrix, probs: Matrix, diagonal: int, instructions: int) -> Program:
    """Read a few rows of scores, normalise each and write the probabilities."""
    scores = yield Load(s.tile(0, s.rows))
    yield Wait(scores)
    elements = s.rows * s.cols
    result = yield Vector(
        lambda x: row_softmax(mask_scores(x, 0, diagonal)),
        (scores,),
        exps=elements,
        instructions=instructions * elements,
    )
    yield Store(probs.tile(0, s.rows), result)


def textbook(plan: Plan) -> Traffic:
    """8N^2 + 6Nd bytes per fp16 head: S and P written and read (4 x 2N^2), Q, K and V read (3 x 2Nd).

    The write of O is left out. N^2 is seq x seq_kv, Q counts `heads`, K and V count `kv_heads`, and each tensor has its
    own bytes per element.
    """
    size = sizes(plan)
    return read_once(plan, "Q", "K", "V") | {name: (size[name], size[name]) for name in ("S", "P")}


def sm_port(plan: Plan) -> Traffic:
    """Both GEMMs re-read A per column of output tiles and B per row of them and query head; masks skip nothing."""
    p, s, size = plan.problem, plan.schedule, sizes(plan)
    return {
        "Q": (size["Q"] * blocks(p.seq_kv, s.tile_kv), 0),
        "K": (size["K"] * p.group * blocks(p.seq, s.tile_q), 0),
        "V": (size["V"] * p.group * blocks(p.seq, s.pv_tile_q), 0),
        "S": (size["S"], size["S"]),
        "P": (size["P"] * blocks(p.dim, s.pv_tile_d), size["P"]),
        "O": (0, size["O"]),
    }
