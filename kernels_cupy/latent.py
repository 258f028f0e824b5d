"""Tiles of the decoding kernel for latent attention (MLA), `decode_latent.cu`, and what it does not do."""

from __future__ import annotations

from pathlib import Path

from kernels_cupy.combine import loads_under_way
from kernels_cupy.kernel import require_supported
from traces.decoding import MMA_ROWS, DecodeTiles
from traces.launch import KernelLaunch
from traces.problem import AttentionProblem

LATENT_SOURCE = Path(__file__).with_name("decode_latent.cu")

WARPS, KEYS = 8, 64
"""Of a CTA, and of its steps, by default."""
TILES_Q = (16, 32, 64)
"""Rows of a CTA: of one warp up to 32, which all warps share, and of two groups of warps."""
MOST_COLUMNS = 512
"""Of V: 32 rows of a quarter of them are 128 registers of a thread."""


def latent_tiles(p: AttentionProblem, packed: bool, sm_count: int, shared_bytes: int) -> dict[str, int | str]:
    """Changes to the trace's default schedule: as many rows as a group has, in one CTA per SM of 8 warps.

    Args:
        packed: whether a tile has the rows of all query heads.
        shared_bytes: of a CTA, which as many stages as fit (at least two) fill.
    """
    rows = p.seq * (p.heads if packed else 1)
    tile_q = next((n for n in TILES_Q if n >= rows), TILES_Q[-1])
    tiles: dict[str, int | str] = {"tile_q": tile_q, "tile_kv": KEYS, "warps": WARPS, "dequantise": "registers"}
    stages = max(2, min(4, _stages(p, tile_q, shared_bytes)))
    split = {"cta_slots": sm_count, "combine_loads": loads_under_way(p.dim_v)} if packed else {}
    return tiles | {"stages": stages} | split


def _stages(p: AttentionProblem, tile_q: int, shared_bytes: int) -> int:
    one, two = (
        DecodeTiles(tile_q=tile_q, tile_kv=KEYS, stages=n, warps=WARPS).resources(p).shared_bytes for n in (1, 2)
    )
    return 1 + (shared_bytes - one) // (two - one)


def check_latent(p: AttentionProblem, s: DecodeTiles, launch: KernelLaunch) -> None:
    """ValueError, in one sentence, for what the kernel does not do."""
    require_supported(s.instruction == "mma_sync", f"schedule key instruction is {s.instruction!r}, not mma_sync")
    require_supported(p.dtype in ("fp16", "bf16"), f"dtype {p.dtype} is not fp16 or bf16")
    require_supported(p.kv_dtype == p.dtype, f"kv_dtype {p.kv_dtype} of a latent is not {p.dtype}")
    require_supported(p.dim % 64 == 0, f"dim {p.dim} of a latent is not a multiple of 64")
    require_supported(s.stages >= 2, f"schedule key stages is {s.stages}, but latents need at least 2")
    require_supported(s.tile_q in TILES_Q, f"tile_q {s.tile_q} of latent attention is not 16, 32 or 64")
    row_groups = max(1, s.tile_q // (2 * MMA_ROWS))
    require_supported(s.warps % row_groups == 0, f"schedule key warps is {s.warps}, not a multiple of {row_groups}")
    columns, keys = s.warps // row_groups, 8 * s.warps // row_groups
    require_supported(
        p.dim_v % (16 * columns) == 0 and p.dim_v // columns <= MOST_COLUMNS // 4,
        f"dim_v {p.dim_v} is not 16 to 128 columns, in multiples of 16, for each of {columns} warps",
    )
    copied = 4 * s.warps
    require_supported(
        s.tile_kv % keys == 0 and s.tile_kv % copied == 0 and s.tile_kv % MMA_ROWS == 0,
        f"tile_kv {s.tile_kv} is not a multiple of 16, {keys} and {copied}",
    )
    merged = s.tile_q * (p.dim_v + 8) * 4
    tiles = (s.tile_q + s.stages * s.tile_kv) * p.dim * p.storage.element_bytes
    require_supported(merged <= tiles, f"O takes {merged} bytes of shared memory, but Q and the latents only {tiles}")
