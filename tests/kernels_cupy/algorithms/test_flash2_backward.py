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

WIDE: dict[str, dict[str, Any]] = {
    "256": {"dim": 256},
    "256 causal, grouped": {"dim": 256, "causal": True, "heads": 4, "kv_heads": 2, "layout": "bshd", "dtype": "bf16"},
    "192": {"dim": 192, "causal": True},
    "192 and 128": {"dim": 192, "dim_v": 128},
    "padded to 192": {"dim": 160, "causal": True, "dtype": "bf16"},
    "padded to 192 and 256": {"dim": 136, "dim_v": 200},
}
"""One shape per way the kernel past 128 dimensions is specialised: panels of K and of V, the last whole or not."""


@pytest.mark.parametrize("name", CLASSES)
def test_do_the_kernels_compile_without_spills_on_hopper(name: str) -> None:
    assert_compiles(kernels(plan_of("flash2_backward", **CLASSES[name])), "sm_90a")


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_do_the_kernels_of_wide_heads_compile_without_spills(name: str, arch: str) -> None:
    assert_compiles(kernels(plan_of("flash2_backward", **WIDE[name])), arch)


@pytest.mark.parametrize("shape", [*CLASSES.values(), *WIDE.values()], ids=[*CLASSES, *WIDE])
def test_do_products_run_on_while_warps_do_other_work(shape: dict[str, Any]) -> None:
    """The compiler says so if it has each wgmma waited for, as it has in a branch that threads may take apart."""
    _, main, *_ = kernels(plan_of("flash2_backward", **shape))
    log = main.compile("sm_90a").log
    assert main.name == "flash2_backward" and "Used" in log and "serialized" not in log


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a != "sm_90a"])
def test_do_the_kernels_compile_elsewhere_with_hardly_a_spill(name: str, arch: str) -> None:
    """There mma.sync takes operands through registers: a few values of the epilogue may leave them, not the sums."""
    for spec in kernels(plan_of("flash2_backward", **CLASSES[name])):
        report = spec.compile(arch).reports[spec.entry]
        assert report.registers * spec.threads <= 65536
        assert report.spill_store_bytes <= 64


@pytest.mark.parametrize("dim", [8, 64, 72, 128, 136, 160, 192, 256])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_do_the_launches_agree_with_the_trace(dim: int, kv_heads: int) -> None:
    plan = plan_of("flash2_backward", heads=4, kv_heads=kv_heads, seq=333, seq_kv=999, dim=dim, causal=True)
    assert_agrees_with_trace(plan)


@pytest.mark.parametrize(
    ("schedule", "shape", "message"),
    [
        ({}, {"dim": 264}, "dim 264 is not a multiple of 8 up to 256"),
        ({}, {"dim": 20}, "dim 20 is not a multiple of 8 up to 256"),
        ({}, {"dtype": "fp32"}, r"formats \['fp32'\] are not fp16 or bf16"),
        ({"instruction": "mma_sync"}, {}, "instruction is 'mma_sync', not wgmma"),
        ({"tile_q": 128}, {}, "tile_q 128 is not 64, the one size for dim 128 and dim_v 128"),
        ({"tile_kv": 64}, {}, "tile_kv 64 is not 128, the one size for dim 128 and dim_v 128"),
        ({"tile_kv": 128}, {"dim": 192, "dim_v": 128}, "tile_kv 128 is not 64, the one size for dim 192 and dim_v 128"),
        ({"warps": 4}, {}, "warps 4 are not 8, two warpgroups"),
    ],
)
def test_is_what_is_not_supported_one_sentence(schedule: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kernels(plan_of("flash2_backward", schedule, **shape))
    assert "\n" not in str(error.value)


def test_do_the_widest_heads_fit_a_hopper_sm() -> None:
    """227 KB per CTA: K, V, two buffers of Q and dO, P and dS."""
    _, main, *_ = kernels(plan_of("flash2_backward", dim=256))
    assert main.shared_bytes == 6 * 64 * 256 * 2 + 2 * 64 * 64 * 2 + 2 * 2 * 64 * 4 <= 227 << 10


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
