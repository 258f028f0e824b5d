"""Are the two limits exact? Without an L2 every SM byte goes to HBM, with an endless one only compulsory bytes do.

The formulas are written here by hand, tile by tile; they share nothing with `traces.analytic`. Shapes are such that
every row of Q, K, V, S, P and O is a whole number of sectors; the LSE is not, and is counted sector by sector.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpusim.counters import C
from tests.gpusim.simulations import counts, plan_of, run
from traces.problem import AttentionProblem

SHAPES: dict[str, dict[str, Any]] = {
    "one head": {"heads": 1, "seq": 256, "dim": 64},
    "several heads and sequences": {"batch": 2, "heads": 3, "seq": 256, "dim": 128},
    "ragged": {"heads": 2, "seq": 333, "seq_kv": 208, "dim": 80},
    "causal": {"heads": 2, "seq": 512, "dim": 64, "causal": True},
    "causal, ragged, longer keys": {"heads": 1, "seq": 200, "seq_kv": 464, "dim": 128, "causal": True},
    "causal, rows without keys": {"heads": 2, "seq": 400, "seq_kv": 96, "dim": 64, "causal": True},
    "grouped queries": {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 144, "seq_kv": 320, "dim": 64},
    "one kv head, token-major": {"heads": 4, "kv_heads": 1, "seq": 272, "dim": 64, "layout": "bshd"},
    "heads narrower than a line, token-major": {"heads": 6, "seq": 192, "dim": 32, "layout": "bshd"},
    "fp32": {"heads": 2, "seq": 160, "dim": 64, "dtype": "fp32"},
    "seven queries per key head, smaller values": {"heads": 7, "kv_heads": 1, "seq": 144, "dim": 192, "dim_v": 128},
    "fp32 values": {"heads": 2, "seq": 176, "dim": 64, "v_dtype": "fp32"},
    "window": {"heads": 2, "seq": 512, "dim": 64, "causal": True, "window": 100},
    "window, longer keys": {"heads": 1, "seq": 200, "seq_kv": 464, "dim": 64, "causal": True, "window": 150},
    "unequal lengths": {"heads": 2, "lengths": (300, 0, 64, 129), "kv_lengths": (208, 32, 0, 400), "dim": 64},
    "unequal lengths, causal, token-major": {"heads": 2, "lengths": (300, 77, 5), "dim": 64, "causal": True}
    | {"kv_lengths": (208, 400, 5), "layout": "bshd"},
}
GEMMS = {"tile_q": 128, "tile_kv": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 1} | {
    "pv_tile_q": 128,
    "pv_tile_d": 64,
    "pv_tile_k": 64,
    "pv_cluster_m": 1,
    "pv_cluster_n": 1,
}
TILES: dict[str, dict[str, Any]] = {
    "naive": GEMMS,
    "naive_online_softmax, on chip": GEMMS | {"softmax_tile": 64, "softmax_resident": True},
    "naive_online_softmax, read twice": GEMMS | {"softmax_tile": 64, "softmax_resident": False},
    "flash2": {"tile_q": 128, "tile_kv": 64},
    "flash2, 3 splits": {"tile_q": 64, "tile_kv": 64, "splits": 3},
    "flash3": {"tile_q": 128, "tile_kv": 96, "cluster": 1},
}
Bytes = dict[str, int]


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def by_hand(algorithm: str, tiles: dict[str, Any], p: AttentionProblem) -> tuple[Bytes, Bytes, Bytes]:
    """By tensor: bytes read and bytes written through all SM ports, and input bytes that anybody reads at all."""
    size = {"fp16": 2, "bf16": 2, "fp32": 4}
    row = {"Q": p.dim * size[p.dtype], "K": p.dim * size[p.kv_dtype], "V": p.dim_v * size[p.v_dtype]}
    row["O"] = p.dim_v * size[p.dtype]
    return (three_kernels if algorithm.startswith("naive") else flash)(algorithm, tiles, p, row)


def three_kernels(algorithm: str, tiles: dict[str, Any], p: AttentionProblem, row: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """All sequences as long as the longest."""
    queries, keys = p.batch * p.heads * p.seq, p.batch * p.heads * p.seq_kv
    score_bytes = queries * p.seq_kv * {"fp16": 2, "bf16": 2, "fp32": 4}[p.dtype]
    read = {
        "Q": queries * row["Q"] * ceil(p.seq_kv, tiles["tile_kv"]),  # once per column of tiles
        "K": keys * row["K"] * ceil(p.seq, tiles["tile_q"]),  # once per row of tiles, in each query head
        "S": score_bytes * (1 if tiles.get("softmax_resident", True) else 2),
        "P": score_bytes * ceil(p.dim_v, tiles["pv_tile_d"]),
        "V": keys * row["V"] * ceil(p.seq, tiles["pv_tile_q"]),
    }
    group = p.heads // p.kv_heads
    once = {"Q": queries * row["Q"], "K": keys // group * row["K"], "V": keys // group * row["V"]}
    return read, {"S": score_bytes, "P": score_bytes, "O": queries * row["O"]}, once


def flash(algorithm: str, tiles: dict[str, Any], p: AttentionProblem, row: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """Every block of every sequence, the sequences one after another."""
    lengths = list(zip(p.lengths, p.kv_lengths, strict=True)) or [(p.seq, p.seq_kv)] * p.batch
    tile_q, tile_kv, splits = tiles["tile_q"], tiles["tile_kv"], tiles.get("splits", 1)
    rows_per_store = 64 if algorithm == "flash3" else tile_q
    packed = sum(rows for rows, _ in lengths)
    queries = keys = different_queries = different_keys = 0
    stores: list[tuple[int, int]] = []  # (first row of the batch, rows)
    start = 0
    for rows, own_keys in lengths:
        read_queries: set[int] = set()
        read_keys: set[int] = set()
        for first in range(0, rows, tile_q):
            end = min(rows, first + tile_q)
            stores += [(start + r, min(rows_per_store, end - r)) for r in range(first, end, rows_per_store)]
            # The first row's first key, down to a whole step; the last row's last key.
            low = max(0, first + own_keys - rows - p.window + 1) // tile_kv * tile_kv if p.window else 0
            high = min(own_keys, max(0, end + own_keys - rows)) if p.causal else own_keys
            part = ceil(ceil(own_keys, tile_kv), splits) * tile_kv
            for split in range(splits):
                seen = range(max(low, split * part), min(high, (split + 1) * part))
                keys += len(seen)
                queries += end - first if seen else 0  # a block that sees no key does not read its queries
                read_keys |= set(seen)
                read_queries |= set(range(first, end)) if seen else set()
        start += rows
        different_queries, different_keys = different_queries + len(read_queries), different_keys + len(read_keys)
    read = {"Q": p.heads * queries * row["Q"]} | {name: p.heads * keys * row[name] for name in ("K", "V")}
    once = {"Q": p.heads * different_queries * row["Q"]}
    once |= {name: p.kv_heads * different_keys * row[name] for name in ("K", "V")}
    written = {"O": p.heads * packed * row["O"]}
    # Uniform sequences have a batch entry each, so that a row of the batch is (sequence, head, row) in memory.
    own_rows = packed if p.lengths else p.seq
    matrices = p.heads if p.lengths else p.batch * p.heads
    if not p.lengths:
        stores = [(first, rows) for first, rows in stores if first < p.seq]

    def lse(matrices: int, stores: list[tuple[int, int]]) -> int:
        starts = [(4 * (m * own_rows + first), 4 * rows) for m in range(matrices) for first, rows in stores]
        return sum(32 * ((first + size - 1) // 32 - first // 32 + 1) for first, size in starts)

    if splits == 1:
        return read, written | {"LSE": lse(matrices, stores)}, once
    partial = splits * p.heads * packed * p.dim_v * 4
    few = 4 if p.dim_v % 128 == 0 else 8 if p.dim_v % 64 == 0 else 16
    combined = [(first, min(few, own_rows - first)) for first in range(0, own_rows, few)]
    read |= {"O_partial": partial, "LSE_partial": lse(matrices * splits, combined)}
    written |= {"O_partial": partial, "LSE_partial": lse(matrices * splits, stores), "LSE": lse(matrices, combined)}
    return read, written, once


def nonzero(bytes_by_tensor: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in bytes_by_tensor.items() if n}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", TILES)
def test_does_every_sm_byte_reach_hbm_without_an_l2(case: str, shape: str) -> None:
    algorithm = case.split(",")[0]
    plan = plan_of(algorithm, TILES[case], **SHAPES[shape])
    read, written, _ = by_hand(algorithm, TILES[case], plan.problem)
    result = run(plan, "l2.size=0")
    for counter in (C.SM_READ, C.L2_READ, C.DRAM_READ):
        assert nonzero(counts(result, counter)) == nonzero(read), counter.name
    for counter in (C.SM_WRITE, C.L2_WRITE, C.DRAM_WRITE):
        assert nonzero(counts(result, counter)) == nonzero(written), counter.name
    total = result.total()
    assert total.dirty_bytes_left == 0
    assert total.l2_hit_rate * (total.l2_read_bytes + total.l2_write_bytes) == pytest.approx(total.l2_write_bytes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", TILES)
def test_are_hbm_bytes_compulsory_with_an_endless_l2(case: str, shape: str) -> None:
    algorithm = case.split(",")[0]
    plan = plan_of(algorithm, TILES[case], **SHAPES[shape])
    result = run(plan, "l2.size=inf")
    _, written, once = by_hand(algorithm, TILES[case], plan.problem)
    # Inputs that anybody needs, once each; S, P and partial results are still in the L2.
    assert nonzero(counts(result, C.DRAM_READ)) == nonzero(once)
    assert nonzero(counts(result, C.DRAM_WRITE)) == {}
    whole = {name: 32 * ceil(plan.tensor(name).size_bytes, 32) for name in written}
    assert nonzero(result.kernels[-1].dirty_bytes) == whole


def test_does_an_endless_l2_read_once_what_sms_of_both_partitions_read() -> None:
    """One head, 64 query blocks all over the GPU, and each of them reads all of K and V."""
    plan = plan_of("flash2", heads=1, seq=8192, dim=128)
    for allocation in ("none", "evict_first", "middle", "allocate"):
        total = run(plan, "l2.size=inf", f"l2.home_allocation={allocation}").total()
        assert total.dram_read_bytes == 3 * 8192 * 128 * 2


def test_does_a_warm_endless_l2_read_nothing() -> None:
    plan = plan_of("flash2", heads=2, seq=1024, dim=64)
    total = run(plan, "l2.size=inf", l2="warm").total()
    assert total.dram_read_bytes == total.dram_write_bytes == 0
