"""Do the kernels of `decode_split` compile as their traces say, and compute attention?"""

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

SHAPE: dict[str, Any] = {"batch": 16, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 4096, "dim": 128}
LATENT: dict[str, Any] = {"mla": True, "kv_heads": 1, "dim": 576, "dim_v": 512}

CLASSES: dict[str, dict[str, Any]] = {
    "a CTA per SM": {},
    "many CTAs, token-major": {"batch": 64, "layout": "bshd"},
    "32 rows, packed sequences, a window": {
        "seq": 8,
        "dtype": "bf16",
        "causal": True,
        "window": 100,
        "kv_lengths": (500, 0, 90),
        "batch": 1,
    },
    "256 columns": {"dim": 256, "heads": 64, "seq": 2, "causal": True},
    "192 and 128": {"batch": 1, "dim": 192, "dim_v": 128},
    "fp8 per token": {"kv_dtype": "fp8"},
    "fp8 per channel, splits": {"batch": 3, "kv_dtype": "fp8", "kv_scale": "channel"},
    "fp8 per head, 32 rows": {"kv_dtype": "fp8", "kv_scale": "head", "seq": 8, "dim": 64},
    "int8, bf16 queries, 32 rows": {"kv_dtype": "int8", "dtype": "bf16", "seq": 8, "causal": True},
    "fp8 of V only": {"v_dtype": "fp8"},
    "fp8 per token, 8 outliers": {"kv_dtype": "fp8", "outlier_channels": 8},
    "int8 per channel, 32 outliers, 32 rows": {
        "kv_dtype": "int8",
        "kv_scale": "channel",
        "outlier_channels": 32,
        "seq": 8,
        "dtype": "bf16",
        "causal": True,
    },
    "fp8 per head, 2 outliers": {"kv_dtype": "fp8", "kv_scale": "head", "outlier_channels": 2},
    "latents, 64 rows": LATENT | {"heads": 128},
    "latents, 16 rows, packed sequences, a window": LATENT
    | {"heads": 16, "dtype": "bf16", "causal": True, "window": 100, "kv_lengths": (500, 0, 90), "batch": 1},
    "latents, 32 rows, token-major": LATENT | {"heads": 32, "dim": 320, "dim_v": 256, "layout": "bshd"},
    "small latents": LATENT | {"heads": 64, "dim": 192, "dim_v": 128, "seq": 2, "causal": True},
}
"""One shape per way the kernels are specialised: tiles, masks, layouts, packed sequences, splits, codes, scales,
outliers, latents."""


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_compile_without_spills(name: str, arch: str) -> None:
    assert_compiles(kernels(plan_of("decode_split", **SHAPE | CLASSES[name])), arch)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("splits", [0, 1, 7])
def test_do_the_launches_agree_with_the_trace(name: str, splits: int) -> None:
    assert_agrees_with_trace(plan_of("decode_split", {"splits": splits}, **SHAPE | CLASSES[name]))


@pytest.mark.parametrize(
    ("batch", "warps", "ctas"), [(16, 8, 128), (64, 4, 512), (1, 8, 128), (24, 8, 192), (48, 8, 384)]
)
def test_do_the_default_tiles_fill_the_gpu(batch: int, warps: int, ctas: int) -> None:
    first = kernels(plan_of("decode_split", **SHAPE | {"batch": batch, "seq_kv": 32768}))[0]
    assert (first.threads, first.ctas) == (32 * warps, ctas)
    assert 90 << 10 < first.shared_bytes <= 227 << 10


@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_do_latents_fill_an_sm(heads: int) -> None:
    first = kernels(plan_of("decode_split", **SHAPE | LATENT | {"heads": heads}))[0]
    assert first.defines["TILE_Q"] == min(64, heads) and first.defines["STAGES"] == 2
    assert 160 << 10 < first.shared_bytes <= 227 << 10


@pytest.mark.gpu
def test_do_the_kernels_compute_attention() -> None:
    assert_right_on_gpu("decode_split")
