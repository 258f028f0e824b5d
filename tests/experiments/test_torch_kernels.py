"""Do the mapped schedules move the measured bytes?"""

from itertools import pairwise

import pytest

from experiments.measurements import MeasuredCall, attention_calls
from experiments.port_bytes import PortBytes, port_bytes
from experiments.torch_kernels import CublasTile, map_call, naive_schedule
from traces.algorithms.flash3 import Flash3Schedule
from traces.gemm_grid import Tiling

MAPPED = [m for c in attention_calls("h200", "warm") if (m := map_call(c)) is not None]
LARGE_SOFTMAX_CTAS = 100_000
"""Above this, a softmax row is not counted CTA by CTA: it is the same kernel as in the smaller rows."""


def counted(call: MeasuredCall) -> list[tuple[str, PortBytes]]:
    mapped = map_call(call)
    assert mapped is not None
    return [(k.name, port_bytes(k)) for k in mapped.plan().launches if k.ctas < LARGE_SOFTMAX_CTAS]


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", CublasTile(128, 256, 64, 4, 2, 1, "along_m", True)),
        ("nvjet_sm90_hsh_64x64_64x13_2x1_v_bz_NNT", CublasTile(64, 64, 64, 13, 1, 2, "along_n", False)),
        ("nvjet_sm90_hsh_64x512_64x2_1x2_h_bz_coopB_NNT", CublasTile(512, 64, 64, 2, 2, 1, "along_m", True)),
    ],
)
def test_cublas_names_are_column_major(name: str, tile: CublasTile) -> None:
    assert CublasTile.parse(name) == tile


def test_a_foreign_kernel_name_is_refused() -> None:
    with pytest.raises(ValueError, match="nvjet"):
        CublasTile.parse("ampere_h16816gemm_128x128_ldg8_stages_32x5_tn")


def test_all_calls_are_mapped_but_flash_forwards_that_spill() -> None:
    paths = {"naive", "cudnn", "cudnn_causal", "naive_bwd", "flash_bwd", "decode_flash"}
    assert {m.call.algorithm for m in MAPPED} == paths
    assert len(MAPPED) == 31


@pytest.mark.parametrize("mapped", MAPPED, ids=lambda m: m.call.label)
def test_grids_are_the_measured_ones(mapped) -> None:  # type: ignore[no-untyped-def]
    launches = mapped.plan().launches
    assert [k.ctas for k in launches] == [k.ctas for k in mapped.call.kernels]
    assert [k.resources.threads for k in launches] == [k.threads for k in mapped.call.kernels]


DECODE = [m for m in MAPPED if m.algorithm == "decode_split"]


@pytest.mark.parametrize("mapped", [m for m in MAPPED if m not in DECODE], ids=lambda m: m.call.label)
def test_sm_port_bytes_are_the_measured_ones(mapped) -> None:  # type: ignore[no-untyped-def]
    """Reads within 0.1 %: what is left is the tile counter that each persistent CTA reads, 32 bytes a tile.

    PyTorch's FlashAttention spills a few registers in its backward pass: up to 0.3 % of what it reads and 7 % of what
    it writes, always more than its tiles.
    """
    spills = mapped.call.algorithm == "flash_bwd"
    measured = dict(zip((k.name for k in mapped.plan().launches), mapped.call.kernels, strict=True))
    for name, count in counted(mapped.call):
        assert measured[name].sm_read_bytes == pytest.approx(count.sm_read, rel=0.0031 if spills else 0.001), name
        assert measured[name].sm_write_bytes == pytest.approx(count.sm_write, rel=0.067 if spills else 0.03), name
        assert not spills or measured[name].sm_write_bytes >= count.sm_write


def test_a_transposed_tile_has_rows_and_columns_exchanged() -> None:
    tile = CublasTile(128, 256, 64, 4, 2, 1, "along_m", True)
    assert tile.transposed() == CublasTile(256, 128, 64, 4, 1, 2, "along_n", True)
    assert tile.transposed().transposed() == tile
    assert Tiling.parse("dv", tile.tiling(16).text()) == Tiling(128, 256, 64, 4, 2, 1, "along_m", 16)


def test_kernels_that_prepare_the_next_shape_are_no_part_of_a_backward_pass() -> None:
    calls = [m.call for m in MAPPED if m.call.algorithm == "naive_bwd"]
    assert [len(c.kernels) for c in calls] == [6, 6, 6]
    whole = {c.config: c for c in attention_calls("h200", "warm") if c.algorithm == "naive_bwd"}
    following = dict(pairwise(whole))
    for config, call in whole.items():
        for extra in call.kernels[6:]:  # as many fp16 elements as one input of the next shape, read and written
            p = whole[following[config]].problem
            assert extra.sm_read_bytes == extra.sm_write_bytes == 2 * p.batch * p.heads * p.seq * p.dim


@pytest.mark.parametrize("mapped", [m for m in MAPPED if m.algorithm == "naive"], ids=lambda m: m.call.label)
def test_the_l2_was_asked_for_no_more_than_multicast_leaves(mapped) -> None:  # type: ignore[no-untyped-def]
    """Merging can only lower the reads. Where cluster mates share V, nothing else merges and the count is exact."""
    schedule = naive_schedule(mapped.call.kernels)
    measured = dict(zip((k.name for k in mapped.plan().launches), mapped.call.kernels, strict=True))
    for name, count in counted(mapped.call):
        assert measured[name].l2_read_bytes <= count.l2_read_unmerged * 1.001, name
        if name == "pv" and schedule.pv_cluster_m == 2:
            assert measured[name].l2_read_bytes == pytest.approx(count.l2_read_unmerged, rel=0.001)


@pytest.mark.parametrize("mapped", [m for m in MAPPED if m.algorithm == "flash3"], ids=lambda m: m.call.label)
def test_cudnn_tiles_are_128_by_128(mapped) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(mapped.schedule, Flash3Schedule)
    assert (mapped.schedule.tile_q, mapped.schedule.tile_kv) == (128, 128)


def test_paths_without_a_counterpart_are_left_out() -> None:
    forward = [c for c in attention_calls("h200", "warm") if c.algorithm in ("flash", "flash_causal")]
    assert forward and all(map_call(c) is None for c in forward)


@pytest.mark.parametrize("mapped", DECODE, ids=lambda m: m.call.label)
def test_decode_reads_queries_and_the_cache_exactly_once(mapped) -> None:  # type: ignore[no-untyped-def]
    """Also the combine kernel's partial results, but for more of their LSE (8 bytes per row and split, not 4).

    Writes are not compared: unlike the algorithm's, these kernels' include spilled registers.
    """
    attention, *combine = zip(mapped.plan().launches, mapped.call.kernels, strict=True)
    assert attention[1].sm_read_bytes == port_bytes(attention[0]).sm_read
    for launch, kernel in combine:
        count = port_bytes(launch)
        assert kernel.sm_read_bytes - count.sm_read == count.sm_read - count.sm_read // 516 * 512
