"""What the kernels of `decode`, `decode_split` and `paged_decode` share: one source, specialised by macros."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from kernels_cupy.combine import loads_under_way
from kernels_cupy.kernel import KernelSpec, c_type, require_supported, starts
from kernels_cupy.latent import LATENT_SOURCE, check_latent, latent_tiles
from traces.combine import MAX_SPLITS
from traces.decoding import MMA_ROWS, DecodeTiles, block_shape
from traces.launch import KernelLaunch, Plan
from traces.problem import AttentionProblem
from traces.traffic import blocks

SOURCE = Path(__file__).with_name("decode.cu")

RESULTS = (("O", "LSE"), ("O_partial", "LSE_partial"), ("O_partial", "max_partial", "sum_partial"))
"""What the kernel stores: final results, those of a part, or those of a part before its sum divides them."""

SCALES = ("", "token", "channel", "head")
CODES = {"int8": "Int8Code", "fp8": "Fp8Code"}

MOST_OUTLIERS = 32
"""Channels of K beside its codes: the columns of Q that meet them are 8 registers of a thread for 16 rows."""

SHARED_BYTES_PER_SM = 227 << 10
"""Of Hopper and Blackwell; what default stages are chosen for."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, per CTA, for the driver."""
ENOUGH_CTAS = 0.8
"""Of the SMs, that there must be a CTA for to leave the keys whole, as in `traces.combine.choose_splits`."""


def preferred_tiles(p: AttentionProblem, packed: bool, sm_count: int) -> dict[str, int | str]:
    """Changes to the trace's default schedule that keep the most of the cache on its way to an SM.

    Where whole or evenly split keys make a CTA for (nearly) every SM, that is one CTA of eight warps each: the fewest
    partial results. Else two CTAs of four warps on an SM, and splits by the trace's rule; but again one of eight where
    that fills the last wave better, or leaves keys whole that two on an SM would split. Stages are as many as fit;
    where less than three would, it is one CTA of four warps.
    """
    if p.mla:
        return latent_tiles(p, packed, sm_count, SHARED_BYTES_PER_SM)
    heads, _ = block_shape(p, 2 * MMA_ROWS, packed)
    tile_q = 2 * MMA_ROWS if heads * p.seq > MMA_ROWS and p.dim_v <= 128 else MMA_ROWS
    heads, tokens = block_shape(p, tile_q, packed)
    ctas = p.batch * p.kv_heads * blocks(p.group, heads) * blocks(p.seq, tokens)
    keys = 32 if p.kv_storage.quantised and p.v_storage.quantised and tile_q == MMA_ROWS else 16
    splits = max(1, min(MAX_SPLITS, sm_count // ctas, p.seq_kv // (8 * keys))) if packed else 1
    one_each = ctas * splits >= ENOUGH_CTAS * sm_count and (
        ctas * splits <= sm_count
        or (packed and ctas < ENOUGH_CTAS * 2 * sm_count)
        or _filled(ctas, sm_count) > _filled(ctas, 2 * sm_count)
    )
    query = tile_q * p.dim * p.storage.element_bytes
    one_step = DecodeTiles(tile_q=tile_q, tile_kv=keys, stages=1, dequantise="registers").resources(p)
    step = one_step.shared_bytes - query  # of one warp

    def stages(per_sm: int, warps: int) -> int:
        return max(1, min(8, (SHARED_BYTES_PER_SM // per_sm - RESERVED_BYTES - query) // (warps * step)))

    candidates = (*(((1, 8),) if one_each else ()), (2, 4))
    per_sm, warps = next((c for c in candidates if stages(*c) >= 3), (1, 4))
    tiles: dict[str, int | str] = {
        "tile_q": tile_q,
        "tile_kv": keys * warps,
        "stages": stages(per_sm, warps),
        "warps": warps,
        "dequantise": "registers",
    }
    if not packed:
        return tiles
    tiles |= {"cta_slots": per_sm * sm_count, "combine_loads": loads_under_way(p.dim_v)}
    return tiles | ({"splits": splits} if warps == 8 else {})


def _filled(ctas: int, slots: int) -> float:
    """Share of the slots of all waves that have a CTA."""
    return ctas / (blocks(ctas, slots) * slots)


def part_kernel(
    plan: Plan, launch: KernelLaunch, *, packed: bool, part_keys: int = 0, parts_slowest: bool = False
) -> KernelSpec:
    """The kernel over parts of the cache: the trace's CTAs, in its order, with its tiles.

    Args:
        packed: whether a tile has the rows of all query heads of a KV head.
        part_keys: keys per part; 0 for parts of equally many steps.
        parts_slowest: whether all blocks' first parts come first.

    Raises:
        ValueError: what the kernel does not do.
    """
    p, s = plan.problem, plan.schedule
    names = {t.name for t in plan.tensors}
    result = next(n for n, results in reversed(list(enumerate(RESULTS))) if names.issuperset(results))
    parts = plan.tensor(RESULTS[result][1]).rows if result else 1
    heads, tokens = block_shape(p, s.tile_q, packed)
    defines: dict[str, int | str] = {
        "T": c_type(p.storage),
        "DIM": p.dim,
        "DIM_V": p.dim_v,
        "TILE_Q": s.tile_q,
        "TILE_KV": s.tile_kv,
        "STAGES": s.stages,
        "WARPS": s.warps,
        "PAGE": p.page_size,
        "RESULT": result,
        "PARTS_SLOWEST": int(parts_slowest),
        "CAUSAL": int(p.causal),
        "WINDOW": int(p.window > 0),
        "VARLEN": int(bool(p.lengths)),
        "TOKEN_MAJOR": int(p.layout == "bshd"),
    }
    if p.mla:
        check_latent(p, s, launch)
    else:
        _check(p, s, launch)
        k_scale, v_scale = (p.kv_scale if f"{name}_scale" in names else "" for name in "KV")
        defines |= {
            "KEY": CODES.get(p.kv_dtype) or c_type(p.kv_storage),
            "VALUE": CODES.get(p.v_dtype) or c_type(p.v_storage),
            "ROWS": heads * min(tokens, p.seq),
            "RUN": _run(p, s, part_keys),
            "KEY_SCALE": SCALES.index(k_scale),
            "VALUE_SCALE": SCALES.index(v_scale),
            "OUTLIERS": p.outlier_channels,
        }
    width = plan.tensor("block_table").cols if p.page_size else 0
    counts = (blocks(p.group, heads), blocks(p.seq, tokens))
    sizes = (p.batch, p.heads, p.kv_heads, p.group, heads, tokens, *counts, p.seq, p.seq_kv, parts, part_keys, p.window)
    inputs = ("K", "V", "KV", "K_scale", "K_outliers", "K_outlier_index", "V_scale", "block_table")
    return KernelSpec(
        name=launch.name,
        source=LATENT_SOURCE if p.mla else SOURCE,
        entry="decode_latent" if p.mla else "decode",
        defines=defines,
        grid=(launch.ctas, 1, 1),
        block=(launch.resources.threads, 1, 1),
        shared_bytes=launch.resources.shared_bytes,
        tensors=("Q", *(name for name in inputs if name in names), *RESULTS[result]),
        tables=(starts(p.lengths), starts(p.kv_lengths)) if p.lengths else (),
        scalars=(*(np.int32(n) for n in (*sizes, width)), np.float32(p.scale)),
    )


def _run(p: AttentionProblem, s: DecodeTiles, part_keys: int) -> int:
    """Keys of a warp's step that always follow each other in the cache: all, those on one page, or 1.

    Parts start at the end of a page only where no window shifts them; 16 keys are what the kernel copies at a time.
    """
    keys = s.tile_kv // s.warps
    if not p.page_size:
        return keys
    run = math.gcd(keys, p.page_size, part_keys)
    return run if run % 16 == 0 and not p.window else 1


def _check(p: AttentionProblem, s: DecodeTiles, launch: KernelLaunch) -> None:
    require_supported(s.instruction == "mma_sync", f"schedule key instruction is {s.instruction!r}, not mma_sync")
    require_supported(p.dtype in ("fp16", "bf16"), f"dtype {p.dtype} is not fp16 or bf16")
    for name, dtype, dim, of in (("kv_dtype", p.kv_dtype, "dim", 64), ("v_dtype", p.v_dtype, "dim_v", 32)):
        require_supported(dtype == p.dtype or dtype in CODES, f"{name} {dtype} is not {p.dtype}, int8 or fp8")
        multiple, value = of if dtype in CODES else 16, getattr(p, dim)
        require_supported(
            value % multiple == 0 and value <= 256,
            f"{dim} {value} in {dtype} is not a multiple of {multiple} up to 256",
        )
    in_registers = s.dequantise == "registers" or "quantised_kv" not in p.features
    require_supported(in_registers, f"schedule key dequantise is {s.dequantise!r}, not registers")
    require_supported(
        p.outlier_channels % 2 == 0 and p.outlier_channels <= MOST_OUTLIERS,
        f"outlier_channels {p.outlier_channels} are not an even number up to {MOST_OUTLIERS}",
    )
    most = 2 * MMA_ROWS if p.dim_v <= 128 else MMA_ROWS
    require_supported(
        s.tile_q <= most, f"a warp has registers for {most} rows of {p.dim_v} columns, not tile_q {s.tile_q}"
    )
    require_supported(
        s.tile_kv in (16 * s.warps, 32 * s.warps),
        f"tile_kv {s.tile_kv} is not 16 or 32 keys for each of {s.warps} warps",
    )
    merged = s.warps * s.tile_q * (p.dim_v + 8 + 2) * 4
    require_supported(
        merged <= launch.resources.shared_bytes,
        f"the outputs of {s.warps} warps take {merged} bytes of shared memory while they are merged, but the tiles "
        f"have only {launch.resources.shared_bytes}; choose more stages or fewer warps",
    )
