"""Is the machine deterministic, does it run the very program that is proven right, and does it behave like hardware?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import gpusim.memory.state
from gpusim.counters import C
from gpusim.errors import UserError
from gpusim.machine import L2_STARTS, simulate
from gpusim.result import Result
from gpusim.spec import load_gpu
from tests.gpusim.simulations import counts, machine, plan_of, random_plans, run, sectors, whole_sums
from tests.traces.problems import ATTENTION, random_inputs
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.launch import Plan
from traces.ops import Load, Op, Reduce, Store
from traces.record import record
from traces.replay import load_trace


def outcome(result: Result) -> dict[str, Any]:
    """Everything but wall time, as JSON and back."""
    found: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    del found["wall_seconds"], found["sectors_per_second"]
    return found


FIXED: dict[str, Any] = {"heads": 4, "kv_heads": 2, "seq": 330, "seq_kv": 400, "dim": 64, "causal": True}
SMALL_L2 = "l2.size=512KiB"
SCRIPT = f"""
import json
from tests.gpusim.simulations import plan_of, run
from tests.gpusim.test_machine import outcome
print(json.dumps({{a: outcome(run(plan_of(a, **{FIXED}), {SMALL_L2!r})) for a in {list(ATTENTION)}}}))
"""


def test_is_the_outcome_the_same_again_and_in_another_process() -> None:
    here = {a: outcome(run(plan_of(a, **FIXED), SMALL_L2)) for a in ATTENTION}
    assert {a: outcome(run(plan_of(a, **FIXED), SMALL_L2)) for a in ATTENTION} == here
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == here


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_do_counters_not_depend_on_how_finely_time_is_binned(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = run(plan_of(algorithm, **FIXED), SMALL_L2)
    monkeypatch.setattr(gpusim.memory.state, "TIMELINE_BINS", 8)
    coarse = run(plan_of(algorithm, **FIXED), SMALL_L2)
    assert coarse.timeline.bin_cycles > fine.timeline.bin_cycles
    assert np.array_equal(fine.counts, coarse.counts) and fine.cycles == coarse.cycles
    narrow = round(coarse.timeline.bin_cycles / fine.timeline.bin_cycles)
    assert coarse.timeline.bin_cycles == narrow * fine.timeline.bin_cycles
    for level, by_tensor in fine.timeline.bytes.items():
        wide = coarse.timeline.bytes[level]
        assert whole_sums(by_tensor) == whole_sums(wide), level
        for name, row in by_tensor.items():
            sums = np.add.reduceat(row, np.arange(0, len(row), narrow))
            assert sums == pytest.approx(wide[name], rel=1e-9, abs=1e-6), f"{level}, {name}"


@given(plan=random_plans(70))
@settings(max_examples=30, deadline=None)
def test_does_the_simulator_move_the_tiles_that_compute_attention(plan: Plan) -> None:
    """Tiles are counted in the numeric driver while it computes; simulated SM ports must have carried the same."""
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    perform = numeric._Numeric.perform

    def counted(self: Any, agent: int, op: Op) -> Any:
        if isinstance(op, Load | Store | Reduce):
            view = self.item.views[op.tile.matrix.slot]
            (read if isinstance(op, Load) else written)[view.tensor.name] += 32 * sectors(op.tile, view)
        return perform(self, agent, op)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numeric._Numeric, "perform", counted)
        outputs = numeric.run(plan, random_inputs(plan))
    assert not any(np.isnan(x).any() for x in outputs.values())
    result = run(plan, "l2.size=256KiB")
    assert +counts(result, C.SM_READ) == +read
    assert +counts(result, C.SM_WRITE) == +written


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_does_a_trace_file_give_the_same_outcome_as_its_plan(algorithm: str, tmp_path: Path) -> None:
    plan = plan_of(algorithm, **FIXED)
    record(plan, tmp_path / "trace.npz")
    assert outcome(run(load_trace(tmp_path / "trace.npz"), SMALL_L2)) == outcome(run(plan, SMALL_L2))


@pytest.mark.parametrize(
    "shape", ({"heads": 2, "seq": 768, "dim": 64}, {"heads": 1, "seq": 1024, "dim": 128, "causal": True})
)
def test_does_twice_the_hbm_bandwidth_never_slow_the_naive_kernels(shape: dict[str, Any]) -> None:
    """Without refresh: kernels start at other moments of its interval, so one may meet a refresh more. And with a wide
    fabric: who waits for it is a matter of moments too."""
    plan = plan_of("naive", **shape)
    for size in ("0", "1MiB", "60MiB"):
        keys = (f"l2.size={size}", "hbm.refresh=none", "noc.fabric_bandwidth=inf")
        base, fast = run(plan, *keys), run(plan, *keys, "hbm.bandwidth=9.628TB/s")
        for before, after in zip(base.kernels, fast.kernels, strict=True):
            assert after.cycles <= 1.001 * before.cycles, f"{before.name}, l2.size={size}"


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_does_a_larger_l2_never_read_more_from_dram(algorithm: str) -> None:
    plan = plan_of(algorithm, heads=4, seq=1024, dim=64)
    sizes = ("0", "128KiB", "512KiB", "2MiB", "8MiB", "60MiB", "inf")
    read = [run(plan, f"l2.size={size}").total().dram_read_bytes for size in sizes]
    for smaller, larger in pairwise(read):
        assert larger <= 1.01 * smaller, dict(zip(sizes, read, strict=True))
    assert read[0] > read[-1]


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_are_l2_reads_sm_reads_without_a_coalescer_and_fewer_with_one(algorithm: str) -> None:
    plan = plan_of(algorithm, heads=8, seq=1024, dim=64)
    apart, merged = run(plan, "noc.coalescer=none").total(), run(plan).total()
    assert apart.l2_read_bytes == apart.sm_read_bytes == merged.sm_read_bytes >= merged.l2_read_bytes
    # The SMs whose requests may be merged are as many as the merge width at most.
    width = machine().noc.merge_width
    assert merged.l2_read_bytes * width >= merged.sm_read_bytes


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_does_a_warm_l2_read_no_more_than_a_cold_one_and_a_flushed_one_no_less(algorithm: str) -> None:
    """Exactly where tensors fit. Where they thrash, write-backs of the round before shift a little who comes first."""
    decoding = {"batch": 8, "seq": 4, "seq_kv": 640} if ALGORITHMS[algorithm].order >= 200 else {}
    plan = plan_of(algorithm, **{"heads": 2, "seq": 640, "dim": 64} | decoding)
    for size, slack in (("512KiB", 1.03), ("2MiB", 1.03), ("60MiB", 1.0)):
        read = {l2: run(plan, f"l2.size={size}", l2=l2).total().dram_read_bytes for l2 in L2_STARTS}
        assert read["warm"] <= slack * read["cold"], size
        assert read["cold"] <= slack * read["flush"], size
    assert read["warm"] == 0 < read["cold"]


@pytest.mark.parametrize("algorithm", ("naive", "flash2"))
def test_does_an_a100_run_it(algorithm: str) -> None:
    gpu = load_gpu("a100-80gb-sxm")
    problem = plan_of("naive", heads=8, seq=1024, dim=128, causal=True).problem
    module = ATTENTION[algorithm]
    plan = module.plan(problem, module.default_schedule(problem, "mma_sync", gpu.sm.count))
    result = simulate(plan, gpu, check=True)
    total = result.total()
    compulsory = 3 * 8 * 1024 * 128 * 2
    assert total.dram_read_bytes >= compulsory and total.flops >= problem.flops()
    assert total.time_us > total.flops / gpu.peak_flops("fp16") * 1e6
    assert outcome(result)["gpu"] == "a100-80gb-sxm"


def test_do_ctas_on_the_ragged_edge_of_a_cluster_do_nothing() -> None:
    """A grid of whole clusters over one row of tiles: half of the CTAs have no tile, and the others are not held up."""
    schedule = {"cluster_m": 2, "pv_cluster_m": 2, "persistent": False}
    clustered = run(plan_of("naive", schedule, heads=2, seq=64, dim=64))
    plain = run(plan_of("naive", {"persistent": False}, heads=2, seq=64, dim=64))
    assert clustered.total().flops == plain.total().flops
    assert np.array_equal(clustered.counts[:, C.SM_WRITE], plain.counts[:, C.SM_WRITE])


def test_does_a_ctas_place_take_the_next_one_when_it_has_nothing_to_do() -> None:
    """On one SM whose first CTAs belong to a sequence without queries, the others run as they do without that one."""
    paged = {"heads": 2, "dim": 64, "seq": 1}
    some = plan_of("decode", batch=4, lengths=(0, 0, 0, 1), kv_lengths=(16, 16, 16, 512), **paged)
    one = plan_of("decode", batch=1, lengths=(1,), kv_lengths=(512,), **paged)
    after_idle, alone = run(some, "sm.count=1"), run(one, "sm.count=1")
    assert counts(after_idle, C.SM_WRITE) == counts(alone, C.SM_WRITE) and after_idle.total().flops > 0
    assert 0 <= after_idle.cycles - alone.cycles < 5000


def test_does_progress_rise_to_one_and_count_warm_rounds() -> None:
    plan = plan_of("naive", heads=2, seq=256, dim=64)
    for l2 in L2_STARTS:
        seen: list[float] = []
        simulate(plan, machine(), l2=l2, progress=seen.append)
        assert seen == sorted(seen) and seen[-1] == 1 and seen[0] > 0


def test_are_an_unknown_l2_start_and_a_tile_that_does_not_fit_refused() -> None:
    plan = plan_of("flash2", heads=1, seq=64, dim=64)
    with pytest.raises(UserError, match="cold, warm, flush"):
        simulate(plan, machine(), l2="tepid")
    large = plan_of("flash2", {"tile_q": 512, "tile_kv": 512}, heads=1, seq=64, dim=256)
    with pytest.raises(UserError, match=r"flash2_forward need \d+ bytes of shared memory"):
        simulate(large, load_gpu("h200"))
