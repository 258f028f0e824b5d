"""Does `--schedule best` choose tiles that fit, use what a GPU has, and say so?"""

from __future__ import annotations

from typing import Any

import pytest

import gpusim.cli.outputs
from gpusim.best_schedule import CLOSE, best_plan, cost_of
from gpusim.cli.main import main
from gpusim.errors import UserError
from gpusim.plans import check_fits, make_plan
from gpusim.spec import load_gpu
from traces.algorithms import ALGORITHMS
from traces.problem import AttentionProblem

FORWARD = [name for name, module in ALGORITHMS.items() if module.order < 100]
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"heads": 16, "seq": 1024, "dim": 128},
    "causal, grouped, ragged": {"heads": 8, "kv_heads": 2, "seq": 700, "seq_kv": 1300, "dim": 64, "causal": True},
    "fp32": {"heads": 4, "seq": 512, "dim": 96, "dtype": "fp32"},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", FORWARD)
def test_is_the_best_plan_one_that_fits_and_no_costlier_than_the_default(algorithm: str, shape: str) -> None:
    problem, gpu = AttentionProblem(**SHAPES[shape]), load_gpu("h200")
    plan, reason = best_plan(algorithm, problem, gpu)
    check_fits(plan, gpu)
    default = make_plan(algorithm, problem, gpu)
    if reason.endswith("the default does not fit"):
        assert algorithm in ("naive", "naive_online_softmax") and problem.dtype == "fp32"
    else:
        assert cost_of(plan, gpu).cycles <= CLOSE * cost_of(default, gpu).cycles
    assert "\n" not in reason and reason.startswith(f"{algorithm}: best of ")
    assert f"tile_q={plan.schedule.tile_q} tile_kv={plan.schedule.tile_kv}" in reason


def test_do_larger_shared_memories_get_larger_key_blocks_down_to_one_pass() -> None:
    problem = AttentionProblem(batch=8, heads=27, seq=2048, dim=64)
    sizes = (32, 64, 256, 1024, 4096)
    gpus = [load_gpu("a100-40gb-sxm", [f"sm.shared_memory={kib}KiB"]) for kib in sizes]
    chosen = [best_plan("flash1", problem, gpu, {"tile_q": 16})[0] for gpu in gpus]  # the release's query rows
    rows = [plan.schedule.tile_kv for plan in chosen]
    assert rows == sorted(rows) and rows[0] == 64 and rows[-1] >= 1024
    for plan, gpu in zip(chosen, gpus, strict=True):
        check_fits(plan, gpu)


def test_do_too_few_registers_rule_large_tiles_out() -> None:
    problem = AttentionProblem(heads=132, seq=4096, dim=128)
    plan, _ = best_plan("flash2", problem, load_gpu("h200", ["sm.shared_memory=8MiB"]))
    held = plan.schedule.tile_q * (plan.schedule.tile_kv + 128)  # S and O in fp32
    assert held <= (255 - 32) * 32 * plan.schedule.warps


def test_is_a_small_memory_used_where_the_default_does_not_fit() -> None:
    problem, gpu = AttentionProblem(heads=8, seq=512, dim=128), load_gpu("mi300x")
    with pytest.raises(UserError, match="shared memory"):
        check_fits(make_plan("flash2", problem, gpu), gpu)
    plan, reason = best_plan("flash2", problem, gpu)
    check_fits(plan, gpu)
    assert reason.endswith("the default does not fit")


def test_are_keys_that_are_given_left_alone() -> None:
    plan, reason = best_plan(
        "flash2", AttentionProblem(heads=8, seq=512), load_gpu("h200"), {"tile_q": "32", "stages": 2}
    )
    assert plan.schedule.tile_q == 32 and plan.schedule.stages == 2
    assert "tile_q" not in reason and "tile_kv" in reason
    given = {"tile_q": 64, "tile_kv": 64, "warps": 4}
    plan, reason = best_plan("flash2", AttentionProblem(heads=8, seq=512), load_gpu("h200"), given)
    assert plan.schedule == make_plan("flash2", plan.problem, load_gpu("h200"), given).schedule
    assert "no tile to choose" in reason


def test_is_what_fits_nowhere_refused() -> None:
    gpu = load_gpu("h200", ["sm.shared_memory=6KiB", "sm.shared_memory_per_cta=5KiB"])
    with pytest.raises(UserError, match="shared memory"):
        best_plan("flash2", AttentionProblem(heads=8, seq=512), gpu)


def test_does_the_command_say_what_it_chose_and_simulate_that(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(gpusim.cli.outputs, "write_outputs", lambda args, results, plans: seen.extend(results))
    shape = ["simulate", "flash2", "--heads", "4", "--seq", "256", "--dim", "64"]
    for choice in ("default", "best"):
        assert main([*shape, "--schedule", choice]) == 0
        err = capsys.readouterr().err
        assert ("flash2: best of " in err) == (choice == "best")
    best = best_plan("flash2", AttentionProblem(heads=4, seq=256, dim=64), load_gpu("h200"))[0].schedule
    assert seen[1]["schedule"]["tile_q"] == best.tile_q and seen[1]["schedule"]["tile_kv"] == best.tile_kv
    assert main([*shape, "--schedule", "best", "--quiet"]) == 0
    assert "best of" not in capsys.readouterr().err
    assert main([*shape, "--schedule", "worst"]) == 2
