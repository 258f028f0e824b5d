"""Do programs that read a quantised cache compute on what it stands for, and move no more than its small bytes?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.traces.problems import ATTENTION, default_plan, hook, stream, work_items
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.analytic import textbook
from traces.kv_tiles import DEQUANTISE_INSTRUCTIONS_PER_4
from traces.ops import Load, Vector
from traces.problem import AttentionProblem
from traces.quantise import dequantised_cache, quantised_cache

QUANTISED = [name for name in ATTENTION if "quantised_kv" in hook(name, "FEATURES", ())]
"""Algorithms that dequantise; that they compute attention, and their closed forms, is tested with all others."""


@pytest.mark.parametrize("algorithm", QUANTISED)
@pytest.mark.parametrize("code", ["int8", "fp8"])
def test_is_dequantisation_counted_per_element_of_every_tile(algorithm: str, code: str) -> None:
    shape: dict[str, Any] = {"heads": 2, "seq": 1, "seq_kv": 256, "dim": 64}
    plain, small = default_plan(algorithm, **shape), default_plan(algorithm, **shape, kv_dtype=code)
    work: list[Counter[str]] = []
    for plan in (plain, small):
        ops = [op for launch, _, item in work_items(plan) for _, op in stream(launch, item).ops]
        tiles = sum(op.tile.rows * op.tile.cols for op in ops if isinstance(op, Load) and op.tile.matrix.name in "KV")
        vectors = [op for op in ops if isinstance(op, Vector)]
        counted = {"instructions": sum(op.instructions for op in vectors), "tiles": tiles}
        work.append(Counter(counted | {"bytes": sum(op.shared_bytes for op in vectors)}))
    extra, elements = work[1] - work[0], work[1]["tiles"]
    assert extra["instructions"] == elements * DEQUANTISE_INSTRUCTIONS_PER_4[code, "fp16"] // 4
    assert extra["bytes"] == 3 * elements  # one byte read, two written


@pytest.mark.parametrize(("kv_scale", "scale_bytes"), [("token", 2 * 4), ("channel", 0), ("head", 0)])
def test_is_there_no_dequantised_tile_in_shared_memory_where_it_is_done_in_registers(
    kv_scale: str, scale_bytes: int
) -> None:
    shape: dict[str, Any] = {"heads": 2, "seq": 1, "seq_kv": 256, "dim": 64, "kv_dtype": "fp8", "kv_scale": kv_scale}
    module, p = ALGORITHMS["decode"], AttentionProblem(**shape)
    plan = module.plan(p, module.Schedule_().changed({"dequantise": "registers", "stages": 3}))
    tile_q, tile_kv = plan.schedule.tile_q, plan.schedule.tile_kv
    assert plan.launches[0].resources.shared_bytes == tile_q * 64 * 2 + 3 * tile_kv * (2 * 64 + scale_bytes)
    ops = [op for launch, _, item in work_items(plan) for _, op in stream(launch, item).ops]
    assert sum(op.shared_bytes for op in ops if isinstance(op, Vector)) == 0


def test_is_a_gqa_8_cache_in_fp8_a_sixteenth_of_mha_in_fp16_apart_from_its_scales() -> None:
    shape: dict[str, Any] = {"heads": 64, "seq": 128, "seq_kv": 2048, "dim": 128}
    mha, gqa = default_plan("flash2", **shape), default_plan("flash2", **shape, kv_heads=8, kv_dtype="fp8")
    for name in "KV":
        assert mha.tensor(name).size_bytes == 16 * gqa.tensor(name).size_bytes
        assert textbook(mha)[name][0] == 16 * textbook(gqa)[name][0]
    scales = {name: textbook(gqa)[name][0] for name in ("K_scale", "V_scale")}
    assert scales == dict.fromkeys(("K_scale", "V_scale"), 8 * 2048 * 4)
    assert scales["K_scale"] * 32 == gqa.tensor("K").size_bytes  # 4 bytes for 128


@pytest.mark.parametrize("kv_scale, scales", [("token", 4 * 8 * 2048), ("channel", 4 * 8 * 128), ("head", 4 * 8)])
def test_are_scales_as_many_as_said(kv_scale: str, scales: int) -> None:
    plan = default_plan("flash2", heads=8, seq=16, seq_kv=2048, v_dtype="fp8", kv_scale=kv_scale)
    assert plan.tensor("V_scale").size_bytes == scales
    assert plan.inputs == ("Q", "K", "V", "V_scale"), "K stays as it is"


def test_is_a_sequence_of_zeros_attended_to_without_nan() -> None:
    plan = default_plan("flash2", heads=1, seq=16, seq_kv=70, dim=32, kv_dtype="fp8", outlier_channels=2)
    q = np.random.default_rng(0).standard_normal((1, 1, 16, 32), np.float32)
    nothing = np.zeros((1, 1, 70, 32), np.float32)
    outputs = numeric.run(plan, {"Q": q} | quantised_cache(plan.problem, nothing, nothing))
    assert (outputs["O"] == 0).all() and np.allclose(outputs["LSE"], np.log(70))


def test_are_algorithms_that_cannot_dequantise_honest_about_it() -> None:
    for name in set(ATTENTION) - set(QUANTISED):
        with pytest.raises(ValueError, match=r"quantised_kv|one query row"):
            default_plan(name, heads=2, seq=64, dim=64, v_dtype="int8")


def test_is_a_cache_in_fp8_nearer_than_int8_per_head_where_a_channel_sticks_out() -> None:
    """The formats differ where they should: int8 has one step for all of a head, fp8 one per binade."""
    generator = np.random.default_rng(2)
    k, v = (generator.standard_normal((1, 1, 256, 64), np.float32) for _ in "KV")
    k[..., 3] *= 60
    errors = {}
    for code in ("int8", "fp8"):
        p = AttentionProblem(heads=1, seq=16, seq_kv=256, dim=64, kv_dtype=code, v_dtype="fp16", kv_scale="head")
        seen = dequantised_cache(p, quantised_cache(p, k, v))[0]
        errors[code] = np.linalg.norm(np.delete(seen - k, 3, 3)) / np.linalg.norm(np.delete(k, 3, 3))
    assert errors["fp8"] < 0.04 < 0.3 < errors["int8"]
