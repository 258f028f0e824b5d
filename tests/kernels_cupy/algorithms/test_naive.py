"""Do the three kernels of `naive` and `naive_online_softmax` compile as their traces say, and compute attention?"""

from __future__ import annotations

from typing import Any

import pytest

from kernels_cupy.algorithms import kernels
from tests.kernels_cupy.compiling import (
    ARCHITECTURES,
    assert_agrees_with_trace,
    assert_compiles,
    assert_right_on_gpu,
    plan_of,
)

ALGORITHMS = ("naive", "naive_online_softmax")

CLASSES: dict[str, dict[str, Any]] = {
    "whole tiles": {"dim": 128},
    "odd pitch, odd column blocks, masked": {
        "dim": 40,
        "seq": 100,
        "seq_kv": 99,
        "dtype": "bf16",
        "causal": True,
    },
    "wide, pitch of pairs": {"dim": 256, "seq": 1001, "seq_kv": 1002},
    "unequal lengths, masked": {"lengths": (300, 0, 77), "kv_lengths": (200, 50, 0), "causal": True},
}
"""One shape per way a kernel is specialised: vector width, columns of PV, format, mask, padding."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", CLASSES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_compile_without_spills(algorithm: str, shape: str, arch: str) -> None:
    assert_compiles(kernels(plan_of(algorithm, **CLASSES[shape])), arch)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_does_the_softmax_of_the_longest_rows_compile_without_spills(algorithm: str, arch: str) -> None:
    _, softmax, _ = kernels(plan_of(algorithm, heads=1, seq_kv=49_144))
    assert softmax.threads == 1024
    assert_compiles((softmax,), arch)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dim", [8, 40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("seq_kv", [1, 99, 1024, 4096, 49_144])
def test_do_the_launches_agree_with_the_trace(algorithm: str, dim: int, seq_kv: int) -> None:
    assert_agrees_with_trace(plan_of(algorithm, heads=4, kv_heads=2, seq=333, seq_kv=seq_kv, dim=dim))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_are_unequal_lengths_padded_as_in_the_trace(algorithm: str) -> None:
    """Products take every sequence as if it was as long as the longest; the softmax is told how long it is."""
    lengths, kv_lengths = (2048, 0, 512), (1024, 300, 0)
    plan = plan_of(algorithm, heads=4, kv_heads=2, lengths=lengths, kv_lengths=kv_lengths)
    qk, softmax, pv = assert_agrees_with_trace(plan)
    equal = kernels(plan_of(algorithm, heads=4, kv_heads=2, batch=3, seq=2048, seq_kv=1024))
    assert (qk, pv) == (equal[0], equal[2])
    assert softmax.tables == (lengths, kv_lengths) and softmax.grid == equal[1].grid


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, {"dim": 20}, "dim 20 is not a multiple of 8 up to 256"),
        ({}, {"dtype": "fp32"}, r"formats \['fp32'\] are not fp16 or bf16"),
        ({"tile_q": 64, "gemm_threads": 128}, {"dim": 300}, "dim 300 is not a multiple of 8 up to 256"),
        ({"instruction": "wgmma"}, {}, "instruction is 'wgmma', not mma_sync"),
        ({"persistent": "true"}, {}, "persistent is true"),
        ({"cluster_n": 2}, {}, "clusters are not supported"),
        ({"tile_q": 8}, {}, "8 warps cannot share a 8 x 128 tile"),
        ({"tile_q": 512}, {}, "needs 256 accumulators per thread of 8 warps; use more"),
        ({"softmax_rows": 3}, {}, "are not whole warps per row"),
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_is_what_is_not_supported_one_sentence(
    algorithm: str, schedule: dict[str, Any], shape: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of(algorithm, schedule, **shape))
    assert "\n" not in str(error.value)


def test_is_a_row_too_long_for_registers_refused() -> None:
    message = "rows of 70000 keys do not fit the registers of 1024 threads, at most 49144 do; choose"
    with pytest.raises(ValueError, match=message):
        kernels(plan_of("naive", heads=1, seq=64, seq_kv=70_000))
    assert_agrees_with_trace(plan_of("naive_online_softmax", heads=1, seq=64, seq_kv=70_000))


def test_is_a_second_reading_of_a_single_tile_refused() -> None:
    with pytest.raises(ValueError, match="softmax_resident=false needs more keys than softmax_tile 4096, not 4000"):
        kernels(plan_of("naive_online_softmax", {"softmax_resident": "false"}, heads=1, seq_kv=4000))


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_do_the_kernels_compute_attention(algorithm: str) -> None:
    assert_right_on_gpu(algorithm)
