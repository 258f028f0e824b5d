"""Where do the bytes of decoding go: through SM ports, out of the L2, and out of HBM?"""

from __future__ import annotations

from typing import Any

import pytest

from gpusim.cli.main import main
from gpusim.counters import C
from tests.gpusim.simulations import counts, plan_of, run
from tests.gpusim.sm.toys import one_sm
from traces.algorithms.paged_decode import VARIANTS
from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Program, Store, Wait
from traces.problem import AttentionProblem
from traces.tensor import Matrix, TensorTable, stacked

BATCHED: dict[str, Any] = {"batch": 4, "heads": 14, "kv_heads": 2, "seq": 1, "seq_kv": 1024, "dim": 64}
CACHE_BYTES = 4 * 2 * 1024 * 64 * 2


def test_does_hbm_give_the_cache_once_and_every_query_head_take_it_through_its_port() -> None:
    result = run(plan_of("decode", **BATCHED), "l2.size=inf")
    assert counts(result, C.SM_READ)["K"] == 7 * CACHE_BYTES
    assert counts(result, C.DRAM_READ)["K"] == CACHE_BYTES


def test_does_packing_take_the_cache_once_at_every_level() -> None:
    result = run(plan_of("decode_split", **BATCHED), "l2.size=0")
    for counter in (C.SM_READ, C.L2_READ, C.DRAM_READ):
        assert counts(result, counter)["K"] == counts(result, counter)["V"] == CACHE_BYTES


@pytest.mark.parametrize("variant", VARIANTS)
def test_does_hbm_give_the_pages_of_a_shared_prefix_once(variant: str) -> None:
    plan = plan_of("paged_decode", {"variant": variant}, **BATCHED, page_size=16, prefix=1000)
    shared = 1000 // 16 * 16
    distinct = shared + 4 * (1024 - shared)
    result = run(plan, "l2.size=inf")
    assert counts(result, C.DRAM_READ)["V"] == distinct * 2 * 64 * 2
    heads = 2 if variant == "packed" else 14
    assert counts(result, C.SM_READ)["V"] == 4 * heads * 1024 * 64 * 2


def test_is_a_latent_cache_read_once_for_keys_and_values() -> None:
    plan = plan_of("decode_split", {"tile_kv": 32}, heads=16, seq=1, seq_kv=512, dim=576, dim_v=512, mla=True)
    assert counts(run(plan, "l2.size=0"), C.DRAM_READ)["KV"] == 512 * 576 * 2


def _copy(pages: int, order: list[int]) -> Plan:
    """One CTA copies `pages` pages of 16 rows of 128 bytes, in `order`, to as many pages of another tensor."""
    table = TensorTable()
    x, y = (table.add(name, (pages, 1, 16, 64), DTYPES["fp16"]) for name in "XY")
    views = tuple(stacked([t.view(page, 0) for page in order]) for t in (x, y))

    def agents(matrices: tuple[Matrix, ...], _: tuple[int, ...]) -> tuple[Program, ...]:
        def copy() -> Program:
            tile = yield Load(matrices[0].tile(5, 16 * pages - 9))
            yield Wait(tile)
            yield Store(matrices[1].tile(5, 16 * pages - 9), tile)

        return (copy(),)

    launch = KernelLaunch("copy", 1, CtaResources(128, 32, 0), lambda _: [WorkItem(views, ())], agents)
    return Plan("copy", AttentionProblem(), None, table.tensors, (launch,), ("X",), ("Y",))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]])
def test_are_pages_read_and_written_row_by_row_wherever_they_lie(order: list[int]) -> None:
    from gpusim.machine import simulate

    gpu = one_sm("l2.size=inf")
    result = simulate(_copy(5, order), gpu, check=True)
    rows = 5 * 16 - 9
    for tensor, counter in ((0, C.SM_READ), (0, C.DRAM_READ), (1, C.SM_WRITE)):
        assert 32 * int(result.counts[tensor, counter]) == rows * 128


def test_can_items_of_different_numbers_of_pages_share_an_sm() -> None:
    """A row of the table of items grows when a longer sequence starts, and keeps what runs already."""
    lengths = (16, 4096, 40, 1, 2000)
    plan = plan_of("paged_decode", {"splits": 1}, heads=4, kv_heads=1, seq=1, kv_lengths=lengths, page_size=1, dim=64)
    result = run(plan, "sm.count=2", "l2.size=0")
    assert counts(result, C.DRAM_READ)["K"] == sum(lengths) * 128


@pytest.mark.parametrize("algorithm", ["decode", "decode_split", "paged_decode"])
def test_has_decoding_one_query_row_unless_told(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", algorithm, "--heads", "8", "--kv-heads", "2", "--analytic"]) == 0
    keys_once, rows = 2 * 2 * 4096 * 256, 2 * 8 * 256
    assert f"{(keys_once + rows) / 1e6:,.2f}" in capsys.readouterr().out


def test_do_page_size_and_splits_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--heads", "4", "--kv-heads", "2", "--seq-kv", "300", "--dim", "64", "--page-size", "8", "--splits", "3"]
    assert main(["simulate", "paged_decode", *shape, "--quiet", "--check"]) == 0
    output = capsys.readouterr().out
    assert "splits=3" in output and "combine" in output and "block_table" in output


def test_does_a_latent_model_ask_for_latent_attention(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "decode_split", "--model", "deepseek-v3", "--seq-kv", "1000", "--footprint"]) == 0
    assert "KV" in capsys.readouterr().out
    assert main(["simulate", "flash2", "--model", "deepseek-v3"]) == 2
    assert "latent K and V (mla) is not supported by this algorithm" in capsys.readouterr().err
