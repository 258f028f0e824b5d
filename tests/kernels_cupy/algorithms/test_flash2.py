"""Do the kernels of `flash2` compile as their traces say, and compute attention?"""

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

CLASSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "64": ({}, {"dim": 64}),
    "128 causal": ({"cta_order": "longest_first"}, {"dim": 128, "causal": True, "layout": "bshd", "dtype": "bf16"}),
    "256, windows of packed sequences": (
        {"cta_order": "swizzled", "kv_order": "sawtooth"},
        {"dim": 256, "causal": True, "window": 100, "lengths": (30, 0, 400)},
    ),
    "192 and 128, two stages": ({"stages": 2, "kv_order": "forward"}, {"dim": 192, "dim_v": 128}),
    "splits": ({"splits": 3, "tile_q": 64}, {"dim": 128, "heads": 2, "seq": 64, "seq_kv": 5000, "causal": True}),
}
"""One shape per way the kernel is specialised: tiles, masks, orders, layouts, packed sequences, splits."""


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_compile_without_spills(name: str, arch: str) -> None:
    schedule, shape = CLASSES[name]
    assert_compiles(kernels(plan_of("flash2", schedule, **shape)), arch)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("splits", [1, 4])
def test_do_the_launches_agree_with_the_trace(dim: int, splits: int) -> None:
    assert_agrees_with_trace(plan_of("flash2", {"splits": splits}, heads=4, kv_heads=2, seq=333, seq_kv=999, dim=dim))


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, {"dim": 40}, "dim 40 is not a multiple of 16 up to 256"),
        ({}, {"dtype": "fp32"}, r"formats \['fp32'\] are not fp16 or bf16"),
        ({"instruction": "wgmma"}, {}, "instruction is 'wgmma', not mma_sync"),
        ({"tile_q": 48}, {}, "tile_q 48 is not a multiple of 16 rows for 4 warps"),
        ({"tile_kv": 24}, {}, "tile_kv 24 is not a multiple of 16"),
        ({"tile_kv": 128}, {"dim": 128}, "keep 256 sums per thread of 4 warps, at most 192 fit"),
    ],
)
def test_is_what_is_not_supported_one_sentence(schedule: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of("flash2", schedule, **shape))
    assert "\n" not in str(error.value)


@pytest.mark.gpu
def test_do_the_kernels_compute_attention() -> None:
    assert_right_on_gpu("flash2")
