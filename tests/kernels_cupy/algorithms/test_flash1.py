"""Does the kernel of `flash1` compile as its trace says, and compute attention?"""

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
    "128 causal": ({}, {"dim": 128, "causal": True, "layout": "bshd", "dtype": "bf16"}),
    "256": ({}, {"dim": 256}),
    "one key block, one stage": ({"stages": 1}, {"dim": 80, "seq": 100}),
    "16, two warps": ({"warps": 2, "tile_kv": 128, "stages": 3}, {"dim": 16}),
}
"""One shape per way the kernel is specialised."""


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_does_the_kernel_compile_without_spills(name: str, arch: str) -> None:
    schedule, shape = CLASSES[name]
    assert_compiles(kernels(plan_of("flash1", schedule, **shape)), arch)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_does_the_launch_agree_with_the_trace(dim: int, stages: int, causal: bool) -> None:
    shape = {"heads": 4, "kv_heads": 2, "seq": 333, "seq_kv": 999, "dim": dim, "causal": causal}
    assert_agrees_with_trace(plan_of("flash1", {"stages": stages}, **shape))


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, {"dim": 40}, "dim 40 is not a multiple of 16 up to 256"),
        ({}, {"dtype": "fp32"}, r"formats \['fp32'\] are not fp16 or bf16"),
        ({"tile_q": 32}, {}, "tile_q 32 is not 16, the rows of one product"),
        ({"tile_kv": 96}, {}, "tile_kv 96 is not a multiple of 64, 16 keys for each of the warps"),
        ({"tile_kv": 512}, {"dim": 64}, "tile_kv 512 is more than 64 keys for each of 4 warps"),
    ],
)
def test_is_what_is_not_supported_one_sentence(schedule: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of("flash1", schedule, **shape))
    assert "\n" not in str(error.value)


@pytest.mark.gpu
def test_does_the_kernel_compute_attention() -> None:
    assert_right_on_gpu("flash1")
