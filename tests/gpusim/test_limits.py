"""Are the two limits exact? Without an L2 every SM byte goes to HBM, with an endless one only compulsory bytes do.

The formulas are written here by hand, tile by tile; they share nothing with `traces.analytic`. Shapes are such that
every row of Q, K, V, S, P and O is a whole number of sectors; the LSE is not, and is counted sector by sector.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpusim.counters import C
from tests.gpusim.simulations import counts, plan_of, run
from traces.algorithms import ALGORITHMS
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
}
TILES: dict[str, dict[str, Any]] = {
    "naive": {"tile_q": 128, "tile_kv": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 1}
    | {"pv_tile_q": 128, "pv_tile_d": 64, "pv_tile_k": 64, "pv_cluster_m": 1, "pv_cluster_n": 1},
    "flash2": {"tile_q": 128, "tile_kv": 64},
    "flash3": {"tile_q": 128, "tile_kv": 96},
}


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def by_hand(algorithm: str, p: AttentionProblem) -> tuple[dict[str, int], dict[str, int]]:
    """(bytes read, bytes written) by tensor through all SM ports."""
    element = {"fp16": 2, "bf16": 2, "fp32": 4}[p.dtype]
    heads = p.batch * p.heads
    query_bytes, key_bytes = heads * p.seq * p.dim * element, heads * p.seq_kv * p.dim * element
    tiles = TILES[algorithm]
    if algorithm == "naive":
        score_bytes = heads * p.seq * p.seq_kv * element
        read = {
            "Q": query_bytes * ceil(p.seq_kv, tiles["tile_kv"]),  # once per column of tiles
            "K": key_bytes * ceil(p.seq, tiles["tile_q"]),  # once per row of tiles, in each query head
            "S": score_bytes,
            "P": score_bytes * ceil(p.dim, tiles["pv_tile_d"]),
            "V": key_bytes * ceil(p.seq, tiles["pv_tile_q"]),
        }
        return read, {"S": score_bytes, "P": score_bytes, "O": query_bytes}
    keys = queries = 0
    for block in range(ceil(p.seq, tiles["tile_q"])):
        end = min(p.seq, (block + 1) * tiles["tile_q"])  # the block's last row sees the most keys
        seen = min(p.seq_kv, max(0, end + p.seq_kv - p.seq)) if p.causal else p.seq_kv
        keys += seen
        queries += end - block * tiles["tile_q"] if seen else 0  # a block that sees no key does not read its queries
    streamed = heads * keys * p.dim * element
    rows_per_store = tiles["tile_q"] if algorithm == "flash2" else 64
    lse = 0
    for head in range(heads):
        for row in range(0, p.seq, rows_per_store):
            block = row // tiles["tile_q"] * tiles["tile_q"] + tiles["tile_q"]
            first, last = 4 * (head * p.seq + row), 4 * (head * p.seq + min(row + rows_per_store, block, p.seq)) - 1
            lse += 32 * (last // 32 - first // 32 + 1)
    queries_read = heads * queries * p.dim * element
    return {"Q": queries_read, "K": streamed, "V": streamed}, {"O": query_bytes, "LSE": lse}


def nonzero(bytes_by_tensor: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in bytes_by_tensor.items() if n}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name in TILES])
def test_does_every_sm_byte_reach_hbm_without_an_l2(algorithm: str, shape: str) -> None:
    plan = plan_of(algorithm, TILES[algorithm], **SHAPES[shape])
    read, written = by_hand(algorithm, plan.problem)
    result = run(plan, "l2.size=0")
    for counter in (C.SM_READ, C.L2_READ, C.DRAM_READ):
        assert nonzero(counts(result, counter)) == nonzero(read), counter.name
    for counter in (C.SM_WRITE, C.L2_WRITE, C.DRAM_WRITE):
        assert nonzero(counts(result, counter)) == nonzero(written), counter.name
    total = result.total()
    assert total.dirty_bytes_left == 0
    assert total.l2_hit_rate * (total.l2_read_bytes + total.l2_write_bytes) == pytest.approx(total.l2_write_bytes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name in TILES])
def test_are_hbm_bytes_compulsory_with_an_endless_l2(algorithm: str, shape: str) -> None:
    plan = plan_of(algorithm, TILES[algorithm], **SHAPES[shape])
    result = run(plan, "l2.size=inf")
    read, written = by_hand(algorithm, plan.problem)
    whole = {t.name: 32 * ceil(t.size_bytes, 32) for t in plan.tensors}
    # Inputs once each; S and P are still in the L2. The last row sees all keys; queries that see none are not read.
    assert nonzero(counts(result, C.DRAM_READ)) == {n: min(read[n], whole[n]) for n in plan.inputs if read[n]}
    assert nonzero(counts(result, C.DRAM_WRITE)) == {}
    assert nonzero(result.kernels[-1].dirty_bytes) == {name: whole[name] for name in written}


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
