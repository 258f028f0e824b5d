"""Does the simulator move a quantised KV cache's small bytes, read and appended?"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings

from gpusim.counters import C
from tests.gpusim.simulations import counts, plan_of, run, sectors
from tests.traces.algorithms.test_kv_append import problems_of
from tests.traces.problems import accesses
from traces.algorithms import kv_append
from traces.ops import Store
from traces.problem import AttentionProblem


@given(problem=problems_of(whole=False))
@settings(max_examples=15)
def test_do_sm_ports_carry_what_is_appended(problem: AttentionProblem) -> None:
    plan = kv_append.plan(problem, kv_append.KvAppendSchedule())
    expected = {C.SM_READ: dict.fromkeys((t.name for t in plan.tensors), 0)}
    expected[C.SM_WRITE] = dict(expected[C.SM_READ])
    for op, view in accesses(plan):
        expected[C.SM_WRITE if isinstance(op, Store) else C.SM_READ][view.tensor.name] += 32 * sectors(op.tile, view)
    result = run(plan)
    for counter, bytes_of in expected.items():
        assert dict(counts(result, counter)) == bytes_of


def test_does_hbm_carry_a_sixteenth_for_gqa_and_fp8_and_scales_apart() -> None:
    shape: dict[str, Any] = {"heads": 64, "seq": 64, "seq_kv": 512, "dim": 128}
    mha = counts(run(plan_of("flash2", **shape)), C.DRAM_READ)
    gqa = counts(run(plan_of("flash2", **shape, kv_heads=8, kv_dtype="fp8")), C.DRAM_READ)
    assert mha["Q"] == gqa["Q"] and mha["K"] == 16 * gqa["K"] and mha["V"] == 16 * gqa["V"]
    assert gqa["K_scale"] == gqa["V_scale"] == gqa["K"] // 32


def test_does_dequantisation_cost_vector_time_and_shared_memory_traffic_but_no_flops() -> None:
    shape: dict[str, Any] = {"heads": 16, "seq": 256, "seq_kv": 512, "dim": 128}
    plain, small = (run(plan_of("flash2", **shape, kv_dtype=code)) for code in ("fp16", "fp8"))
    total, less = plain.total(), small.total()
    assert less.flops == total.flops and less.sm_read_bytes < total.sm_read_bytes
    busy = [float(np.sum(r.timeline.activity["vector_busy"])) for r in (plain, small)]
    assert busy[1] > 1.05 * busy[0]
    tiles = 2 * 16 * 2 * 512 * 128  # K and V of 16 heads, for two query blocks
    # Codes land instead of fp16 (1 byte less); half of 3 bytes per element is written by the dequantisation.
    scales = 2 * 16 * 2 * 512 * 4
    assert less.shared_write_bytes - total.shared_write_bytes == tiles * 3 // 2 - tiles + scales
