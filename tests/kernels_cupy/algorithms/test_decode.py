"""Does the kernel of `decode` compile as its trace says, and compute attention? What all decoding kernels refuse."""

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

SHAPE: dict[str, Any] = {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 3000, "dim": 128}
LATENT: dict[str, Any] = {"mla": True, "kv_heads": 1, "dim": 576, "dim_v": 512}


@pytest.mark.parametrize("shape", [{}, LATENT, {"dim": 256, "seq": 20, "causal": True, "window": 50, "dtype": "bf16"}])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_compile_without_spills(shape: dict[str, Any], arch: str) -> None:
    assert_compiles(kernels(plan_of("decode", **SHAPE | shape)), arch)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("seq", [1, 5, 40])
def test_do_the_launches_agree_with_the_trace(dim: int, seq: int) -> None:
    assert_agrees_with_trace(plan_of("decode", **SHAPE | {"dim": dim, "seq": seq}))


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, LATENT | {"dim": 560}, "dim 560 of a latent is not a multiple of 64"),
        ({}, LATENT | {"dim_v": 320}, "dim_v 320 is not 16 to 128 columns, in multiples of 16, for each of 8 warps"),
        ({}, LATENT | {"dtype": "bf16", "kv_dtype": "fp16"}, "kv_dtype fp16 of a latent is not bf16"),
        ({"stages": 1}, LATENT, "stages is 1, but latents need at least 2"),
        ({"tile_q": 48}, LATENT, "tile_q 48 of latent attention is not 16, 32 or 64"),
        ({"tile_kv": 32}, LATENT, "tile_kv 32 is not a multiple of 16, 64 and 32"),
        ({"tile_q": 64, "warps": 5}, LATENT, "warps is 5, not a multiple of 2"),
        ({}, {"dim": 40}, "dim 40 in fp16 is not a multiple of 16 up to 256"),
        ({}, {"dim": 96, "kv_dtype": "fp8"}, "dim 96 in fp8 is not a multiple of 64 up to 256"),
        ({}, {"dtype": "fp32"}, "dtype fp32 is not fp16 or bf16"),
        ({}, {"kv_dtype": "bf16"}, "kv_dtype bf16 is not fp16, int8 or fp8"),
        ({}, {"kv_dtype": "fp8", "outlier_channels": 3}, "outlier_channels 3 are not an even number up to 32"),
        ({"dequantise": "shared"}, {"kv_dtype": "fp8"}, "dequantise is 'shared', not registers"),
        ({"instruction": "wgmma"}, {}, "instruction is 'wgmma', not mma_sync"),
        ({"tile_q": 48}, {}, "a warp has registers for 32 rows of 128 columns, not tile_q 48"),
        ({"tile_kv": 48}, {}, "tile_kv 48 is not 16 or 32 keys for each of 4 warps"),
        ({"stages": 1, "warps": 2, "tile_kv": 32, "tile_q": 32}, {}, "take 35328 bytes of shared memory"),
    ],
)
def test_is_what_is_not_supported_one_sentence(schedule: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of("decode", schedule, **SHAPE | shape))
    assert "\n" not in str(error.value)


@pytest.mark.gpu
def test_do_the_kernels_compute_attention() -> None:
    assert_right_on_gpu("decode")
