"""Do the kernels of `flash2_backward` compile as their traces say, and compute gradients?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels_cupy.algorithms import kernels
from kernels_cupy.verify import compare, consistent_inputs, tolerance
from tests.kernels_cupy.compiling import (
    ARCHITECTURES,
    assert_agrees_with_trace,
    assert_compiles,
    assert_right_on_gpu,
    plan_of,
)
from traces import numeric

CLASSES: dict[str, dict[str, Any]] = {
    "64": {"dim": 64},
    "128 causal, grouped": {"dim": 128, "causal": True, "heads": 4, "kv_heads": 2, "layout": "bshd", "dtype": "bf16"},
    "padded": {"dim": 80, "dim_v": 40, "causal": True},
}


@pytest.mark.parametrize("name", CLASSES)
def test_do_the_kernels_compile_without_spills_on_hopper(name: str) -> None:
    assert_compiles(kernels(plan_of("flash2_backward", **CLASSES[name])), "sm_90a")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a != "sm_90a"])
def test_do_the_kernels_compile_elsewhere_with_hardly_a_spill(name: str, arch: str) -> None:
    """There mma.sync takes operands through registers: a few values of the epilogue may leave them, not the sums."""
    for spec in kernels(plan_of("flash2_backward", **CLASSES[name])):
        report = spec.compile(arch).reports[spec.entry]
        assert report.registers * spec.threads <= 65536
        assert report.spill_store_bytes <= 64


@pytest.mark.parametrize("dim", [8, 64, 72, 128])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_do_the_launches_agree_with_the_trace(dim: int, kv_heads: int) -> None:
    plan = plan_of("flash2_backward", heads=4, kv_heads=kv_heads, seq=333, seq_kv=999, dim=dim, causal=True)
    assert_agrees_with_trace(plan)


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, {"dim": 136}, "dim 136 is not a multiple of 8 up to 128"),
        ({}, {"dtype": "fp32"}, r"formats \['fp32'\] are not fp16 or bf16"),
        ({"instruction": "mma_sync"}, {}, "instruction is 'mma_sync', not wgmma"),
        ({"tile_q": 128}, {}, "tile_q 128 is not 64, the one size for dim 128"),
        ({"tile_kv": 64}, {}, "not of 128 keys for 8 warps"),
    ],
)
def test_is_what_is_not_supported_one_sentence(schedule: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of("flash2_backward", schedule, **shape))
    assert "\n" not in str(error.value)


def test_does_the_trace_itself_pass_the_comparison() -> None:
    plan = plan_of("flash2_backward", batch=2, heads=4, kv_heads=2, seq=33, seq_kv=20, dim=16, causal=True)
    inputs = {n: plan.tensor(n).dtype.round(x) for n, x in consistent_inputs(plan).items()}
    outputs = numeric.run(plan, inputs)
    errors = compare(plan, inputs, outputs.__getitem__)
    assert set(errors) == {"dQ", "dK", "dV"} and all(0 < error < tolerance(plan) for error in errors.values())
    outputs["dK"][1, 1, 3, 2] += np.float32(10)
    assert compare(plan, inputs, outputs.__getitem__)["dK"] > tolerance(plan)


@pytest.mark.gpu
def test_do_the_kernels_compute_gradients() -> None:
    assert_right_on_gpu("flash2_backward")
