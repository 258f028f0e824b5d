"""Do the kernels of `paged_decode` compile as their traces say, and compute attention?"""

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
from traces.algorithms.paged_decode import VARIANTS

SHAPE: dict[str, Any] = {"batch": 3, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 4096, "dim": 128}

CLASSES: dict[str, dict[str, Any]] = {
    "16 tokens a page": {},
    "odd pages": {"page_size": 24, "dtype": "bf16", "seq": 3, "causal": True},
    "unequal contexts": {"kv_lengths": (0, 4000, 17), "page_size": 64},
    "fp8 per token": {"kv_dtype": "fp8", "page_size": 32},
    "int8 per channel": {"kv_dtype": "int8", "kv_scale": "channel"},
    "fp8 with outliers, odd pages": {"kv_dtype": "fp8", "outlier_channels": 4, "page_size": 24},
    "latents": {"mla": True, "kv_heads": 1, "heads": 64, "dim": 576, "dim_v": 512},
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_compile_without_spills(name: str, arch: str) -> None:
    assert_compiles(kernels(plan_of("paged_decode", **SHAPE | CLASSES[name])), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_does_the_reduction_of_partitions_compile(arch: str) -> None:
    assert_compiles(kernels(plan_of("paged_decode", {"variant": "v2"}, **SHAPE)), arch)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_do_the_launches_agree_with_the_trace(name: str, variant: str) -> None:
    assert_agrees_with_trace(plan_of("paged_decode", {"variant": variant}, **SHAPE | CLASSES[name]))


@pytest.mark.gpu
def test_do_the_kernels_compute_attention() -> None:
    assert_right_on_gpu("paged_decode")
