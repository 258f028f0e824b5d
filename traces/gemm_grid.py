"""A matrix product per head as a kernel: which output tile each CTA computes, in clusters and in raster order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traces.gemm import gemm_tile
from traces.launch import CtaResources, KernelLaunch, WorkItem
from traces.ops import Program
from traces.tensor import Matrix, View

RASTERS = ("along_n", "along_m")

OutputTile = tuple[int, int, int, int]
"""(batch, head, first row, first column) of an output tile."""


@dataclass(frozen=True, slots=True)
class GemmGrid:
    """The output tiles of one product per head, and which of them each CTA computes.

    Attributes:
        batch, heads, rows, cols: shape of the output, `rows` x `cols` per head.
        tile_m, tile_n: rows and columns of an output tile.
        cluster_m, cluster_n: tiles of a thread-block cluster, whose CTAs multicast the operand they share; those of
            mma.sync only start together, as cp.async cannot.
        raster: one of `RASTERS`: which way consecutive clusters go, along columns or along rows.
        workers: CTAs that fetch tiles from a shared counter until none is left; 0 for one CTA per tile.
        swizzle: clusters across one strip of the raster; 0 for a single strip.
    """

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

    def tile_of(self, index: int) -> OutputTile | None:
        """The tile with work index cluster number x cluster + rank.

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


def gemm_launch(
    name: str,
    grid: GemmGrid,
    views: Callable[[int, int, int, int], tuple[View, ...]],
    *,
    tile_k: int,
    stages: int,
    threads: int,
    instruction: str,
    operand_bytes: tuple[int, int],
    transpose_a: bool = False,
    transpose_b: bool = False,
    scale: float = 1.0,
) -> KernelLaunch:
    """C = scale * A @ B over the grid's tiles, where A, B or both may be stored transposed.

    Args:
        views: (batch, head, row, column) of an output tile → A, B and C cut to it.
        tile_k, stages: elements of k per step, and shared-memory buffers.
        threads: per CTA; with wgmma one warpgroup of them copies, with mma_sync all warps copy and multiply.
        operand_bytes: per element of A and of B.
    """
    tile = grid.tile_m, grid.tile_n, tile_k

    def work(index: int) -> Sequence[WorkItem]:
        position = grid.tile_of(index)
        return [] if position is None else [WorkItem(views(*position), grid.shares(*position[2:]))]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        partners_a, share_a, partners_b, share_b = parameters
        return gemm_tile(
            *matrices,
            tile=tile,
            stages=stages,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            scale=scale,
            asynchronous=instruction == "wgmma",
            share_a=(partners_a, share_a),
            share_b=(partners_b, share_b),
        )

    # The epilogue collects C's tile, in A's format, in the stages' buffers.
    stage = tile_k * (grid.tile_m * operand_bytes[0] + grid.tile_n * operand_bytes[1])
    shared = max(stages * stage, grid.tile_m * grid.tile_n * operand_bytes[0])
    if instruction == "wgmma":  # one warpgroup copies
        resources, warps, columns = CtaResources(threads, 168, shared), max(4, threads // 32 - 4), 1
    else:  # every warp copies and multiplies, and two CTAs share an SM's registers
        resources, warps = CtaResources(threads, min(255, 65536 // (2 * threads)), shared), threads // 32
        columns = warp_grid(grid.tile_m, grid.tile_n, warps)[1]
    return KernelLaunch(name, grid.ctas, resources, work, agents, instruction, warps, grid.cluster, grid.queue, columns)


def warp_grid(tile_m: int, tile_n: int, warps: int) -> tuple[int, int]:
    """How `warps` warps share a tile of mma.sync, (along m, along n): in rectangles of 16 x 8 shapes, most square.

    Where no such rectangles are, all lie along m.
    """
    shapes = [
        (m, warps // m)
        for m in range(1, warps + 1)
        if warps % m == 0 and tile_m % (16 * m) == 0 and tile_n % (8 * (warps // m)) == 0
    ]
    return min(shapes, key=lambda shape: tile_m // shape[0] + tile_n // shape[1], default=(warps, 1))


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one GEMM of several is tiled, as one text.

    Attributes:
        rows, cols, k, stages: output tile, k step and shared-memory buffers.
        cluster_rows, cluster_cols: thread-block cluster along rows and columns of the output.
        raster, swizzle: see `GemmGrid`.
    """

    rows: int
    cols: int
    k: int
    stages: int
    cluster_rows: int = 1
    cluster_cols: int = 1
    raster: str = "along_m"
    swizzle: int = 0

    @classmethod
    def parse(cls, key: str, text: str) -> Tiling:
        """Read `ROWSxCOLSxKxSTAGES[/CLUSTER_ROWSxCLUSTER_COLS[/RASTER[/SWIZZLE]]]`, as 256x128x64x4/2x1/along_n.

        Raises:
            ValueError: schedule key `key` is not of that form.
        """
        shape, cluster, raster, swizzle = (text.split("/") + ["1x1", "along_m", "0"][text.count("/") :] + [""] * 4)[:4]
        try:
            rows, cols, k, stages = (int(part) for part in shape.split("x"))
            cluster_rows, cluster_cols = (int(part) for part in cluster.split("x"))
            found = cls(rows, cols, k, stages, cluster_rows, cluster_cols, raster, int(swizzle))
        except ValueError:
            raise ValueError(f"schedule key {key} is {text!r}, not like 256x128x64x4/2x1/along_n") from None
        if text.count("/") > 3 or raster not in RASTERS or found.swizzle < 0:
            raise ValueError(f"schedule key {key} is {text!r}, not like 256x128x64x4/2x1/along_n/16")
        if any(size < 8 or size % 8 for size in (rows, cols, k)) or not 1 <= stages <= 32:
            raise ValueError(f"schedule key {key} {text!r} needs a tile of multiples of 8 and 1 to 32 stages")
        if not (1 <= cluster_rows <= 16 and 1 <= cluster_cols <= 16):
            raise ValueError(f"schedule key {key} {text!r} needs clusters of 1 to 16 CTAs each way")
        return found

    def text(self) -> str:
        """What `parse` reads."""
        shape = f"{self.rows}x{self.cols}x{self.k}x{self.stages}"
        return f"{shape}/{self.cluster_rows}x{self.cluster_cols}/{self.raster}/{self.swizzle}"

    def grid(self, batch: int, heads: int, rows: int, cols: int, workers: int) -> GemmGrid:
        """The tiles of batch x heads products with outputs of rows x cols; `workers` CTAs if persistent, else 0."""
        clusters = (self.cluster_rows, self.cluster_cols)
        return GemmGrid(batch, heads, rows, cols, self.rows, self.cols, *clusters, self.raster, workers, self.swizzle)
