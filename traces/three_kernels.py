"""Attention as three kernels, S = QK^T, P = softmax(S), O = PV, with S and P in global memory.

What PyTorch's matmul, softmax, matmul does, and "Standard Attention", algorithm 0 of the FlashAttention paper
(Dao et al. 2022, arXiv:2205.14135). The algorithms `naive` and `naive_online_softmax` differ in the softmax alone.

Matrix products know no mask and no unequal lengths: every sequence is padded to the longest, all of S is computed, and
the softmax hides masked keys and padding. Rows of padding end as zeros. What the padding of Q, K and V holds must be
finite, since P = 0 is multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traces.gemm_grid import RASTERS, GemmGrid, gemm_launch
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Program
from traces.problem import AttentionProblem
from traces.schedule import Schedule, require, require_multiple, require_one_of
from traces.softmax import NO_MASK, RowMask
from traces.tensor import Matrix, Tensor, TensorTable, View
from traces.traffic import Traffic, blocks, read_once, sizes

FEATURES = ("lengths", "window", "dim_v")
"""What three kernels do beyond the plain call (`AttentionProblem.require`)."""


@dataclass(frozen=True, slots=True)
class ThreeKernelSchedule(Schedule):
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


def default_tiles(problem: AttentionProblem, instruction: str, sm_count: int) -> dict[str, str | int | bool]:
    """Changes to the schedule: 128x128 tiles, or in PV all of V's head dimension if that is less.

    With wgmma, CUTLASS-like. With mma_sync, those of the CUDA kernels in kernels_cupy: one tile per CTA; all of a row
    of Q in flight if it is short; a row of S shared by as many threads as get up to 32 scores each.
    """
    tiles: dict[str, str | int | bool] = {
        "pv_tile_d": min(128, -(-problem.dim_v // 8) * 8),
        "persistent_ctas": sm_count,
        "instruction": instruction,
    }
    if instruction == "wgmma":
        return tiles
    tile_k = min(64, -(-problem.dim // 16) * 16)
    threads_per_row = min(1024, max(32, 1 << (blocks(problem.seq_kv, 32) - 1).bit_length()))
    softmax_threads = max(128, threads_per_row)
    return tiles | {
        "tile_k": tile_k,
        "stages": min(3, blocks(problem.dim, tile_k)),
        "pv_stages": 3,
        "persistent": False,
        "gemm_threads": 256,
        "softmax_threads": softmax_threads,
        "softmax_rows": softmax_threads // threads_per_row,
        "softmax_instructions": 18,  # fitted; the source has five, and a second exponential in the time of eight
    }


SoftmaxRows = Callable[[Matrix, Matrix, RowMask], Program]
"""The program of a few rows: (S, P, mask)."""


def three_kernels(
    name: str, problem: AttentionProblem, schedule: ThreeKernelSchedule, softmax: SoftmaxRows, softmax_shared_bytes: int
) -> Plan:
    """Tensors and the three launches of the algorithm called `name`, with `softmax` as the program of its rows."""
    p = problem
    p.require(FEATURES)
    table = TensorTable()
    q = table.add("Q", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
    k = table.add("K", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
    v = table.add("V", (p.batch, p.kv_heads, p.seq_kv, p.dim_v), p.v_storage, p.layout)
    s = table.add("S", (p.batch, p.heads, p.seq, p.seq_kv), p.storage)
    probs = table.add("P", (p.batch, p.heads, p.seq, p.seq_kv), p.storage)
    o = table.add("O", (p.batch, p.heads, p.seq, p.dim_v), p.storage, p.layout)
    launches = (
        scores_kernel(p, schedule, q, k, s),
        softmax_kernel(p, schedule, s, probs, softmax, softmax_shared_bytes),
        _output(p, schedule, probs, v, o),
    )
    return Plan(name, p, schedule, table.tensors, launches, ("Q", "K", "V"), ("O",))


def scores_kernel(p: AttentionProblem, schedule: ThreeKernelSchedule, q: Tensor, k: Tensor, s: Tensor) -> KernelLaunch:
    """S = scale QK^T, a tile per work index."""
    tile_m, tile_n = schedule.tile_q, schedule.tile_kv
    cluster = schedule.cluster_m, schedule.cluster_n

    def views(b: int, h: int, row: int, col: int) -> tuple[View, ...]:
        return (
            q.view(b, h).window(row, tile_m),
            k.view(b, h // p.group).window(col, tile_n),
            s.view(b, h).window(row, tile_m, col, tile_n),
        )

    shape = p.batch, p.heads, p.seq, p.seq_kv
    return gemm_launch(
        "qk",
        GemmGrid(*shape, tile_m, tile_n, *cluster, schedule.raster, schedule.workers, schedule.swizzle),
        views,
        tile_k=schedule.tile_k,
        stages=schedule.stages,
        threads=schedule.gemm_threads,
        instruction=schedule.instruction,
        operand_bytes=(q.dtype.element_bytes, k.dtype.element_bytes),
        transpose_b=True,
        scale=p.scale,
    )


def _output(p: AttentionProblem, schedule: ThreeKernelSchedule, probs: Tensor, v: Tensor, o: Tensor) -> KernelLaunch:
    tile_m, tile_n = schedule.pv_tile_q, schedule.pv_tile_d
    cluster = schedule.pv_cluster_m, schedule.pv_cluster_n

    def views(b: int, h: int, row: int, col: int) -> tuple[View, ...]:
        return (
            probs.view(b, h).window(row, tile_m),
            v.view(b, h // p.group).window(0, p.seq_kv, col, tile_n),
            o.view(b, h).window(row, tile_m, col, tile_n),
        )

    return gemm_launch(
        "pv",
        GemmGrid(p.batch, p.heads, p.seq, p.dim_v, tile_m, tile_n, *cluster, schedule.pv_raster, schedule.workers),
        views,
        tile_k=schedule.pv_tile_k,
        stages=schedule.pv_stages,
        threads=schedule.gemm_threads,
        instruction=schedule.instruction,
        operand_bytes=(probs.dtype.element_bytes, v.dtype.element_bytes),
    )


def softmax_kernel(
    p: AttentionProblem,
    schedule: ThreeKernelSchedule,
    s: Tensor,
    probs: Tensor,
    program: SoftmaxRows,
    shared_bytes: int,
) -> KernelLaunch:
    """A few rows of S per CTA."""
    rows = schedule.softmax_rows
    per_head = blocks(p.seq, rows)

    def work(cta: int) -> Sequence[WorkItem]:
        matrix, block = divmod(cta, per_head)
        b, h = divmod(matrix, p.heads)
        row = block * rows
        diagonal = row + p.diagonal_of(b) if p.causal else NO_MASK
        views = s.view(b, h).window(row, rows), probs.view(b, h).window(row, rows)
        return [WorkItem(views, (diagonal, max(0, min(rows, p.rows(b) - row)), p.keys(b)))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        diagonal, own_rows, keys = parameters
        scores, probabilities = matrices
        return (program(scores, probabilities, RowMask(diagonal, p.window, own_rows, keys)),)

    warps = schedule.softmax_threads // 32
    registers = 32 if schedule.instruction == "wgmma" else 48  # PyTorch's kernel; that of kernels_cupy
    resources = CtaResources(schedule.softmax_threads, registers, 4 * warps + shared_bytes)
    return KernelLaunch("softmax", p.batch * p.heads * per_head, resources, work, agents, warps=warps)


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
        "P": (size["P"] * blocks(p.dim_v, s.pv_tile_d), size["P"]),
        "O": (0, size["O"]),
    }
