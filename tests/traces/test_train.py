"""Is a training step its two passes on one set of tensors, and is what it keeps between them counted?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.gradients import gradients
from tests.traces.problems import assert_within, expected, normal_inputs
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.analytic import analytic, sm_port_bytes, textbook, total
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.record import record
from traces.replay import load_trace
from traces.train import BACKWARD, default_train_schedule, kept_bytes, passes_of, train_plan

TRAINED = [name for name in BACKWARD if name in ALGORITHMS]
SHAPE: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 70, "seq_kv": 90, "dim": 32, "causal": True}


def step(name: str, changes: dict[str, Any] | None = None, **shape: Any) -> Plan:
    problem = AttentionProblem(**(SHAPE | shape))
    return train_plan(
        *passes_of(name, problem, default_train_schedule(name, problem, "wgmma", 132).changed(changes or {}))
    )


@pytest.mark.parametrize("name", TRAINED)
def test_does_a_step_compute_attention_and_its_gradients_from_q_k_v_and_do(name: str) -> None:
    plan = step(name)
    assert plan.inputs == ("Q", "K", "V", "dO") and plan.work == "train"
    inputs = normal_inputs(plan, 3)
    outputs = numeric.run(plan, inputs, round_storage=False)
    forward = Plan("flash2", plan.problem, None, plan.tensors, (), ("Q", "K", "V"), ("O",))
    right = {"O": expected(forward, inputs)["O"], **gradients(plan.problem, inputs)}
    for output, (value, bound) in right.items():
        # The backward pass starts from P or LSE as this forward pass rounded them, which doubles their error at most.
        assert_within(outputs[output], value, 2 * bound if output != "O" else bound)


@pytest.mark.parametrize("name", TRAINED)
def test_are_the_closed_forms_of_a_step_the_sums_of_its_passes(name: str) -> None:
    plan = step(name)
    parts = passes_of(name, plan.problem, plan.schedule)
    assert total(textbook(plan)) == sum(total(textbook(part)) for part in parts)
    assert total(sm_port_bytes(plan)) == sum(total(sm_port_bytes(part)) for part in parts)
    assert analytic(plan)["flops"] == sum(analytic(part)["flops"] for part in parts)
    assert {t.name for t in plan.tensors} == {t.name for part in parts for t in part.tensors}
    bases = [(t.base, t.end) for t in plan.tensors]
    assert all(end <= start for (_, end), (start, _) in pairwise(bases))


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("dtype", ("fp16", "fp32"))
def test_are_the_bytes_kept_between_the_passes_what_the_second_reads_of_the_first(name: str, dtype: str) -> None:
    plan = step(name, dtype=dtype)
    forward, backward = passes_of(name, plan.problem, plan.schedule)
    made = set(forward.outputs) | {t.name for t in forward.tensors if t.name not in forward.inputs}
    kept = {t.name: t.size_bytes for t in backward.tensors if t.name in made and t.name in backward.inputs}
    assert kept_bytes(plan.problem, name) == kept
    assert kept_bytes(plan.problem, name, checkpoint=True) == {}


def test_are_kept_bytes_quadratic_for_naive_and_linear_for_flash() -> None:
    problem = AttentionProblem(heads=32, seq=4096, dim=128)
    assert kept_bytes(problem, "naive") == {"P": 32 * 4096 * 4096 * 2}
    assert kept_bytes(problem, "flash2") == {"O": 32 * 4096 * 128 * 2, "LSE": 32 * 4096 * 4}


@pytest.mark.parametrize("name", TRAINED)
def test_does_a_step_read_back_from_a_trace_file(name: str, tmp_path: Path) -> None:
    changes = {"backward.row_tile": 32} if "naive" not in name else {"backward.fuse": False}
    plan = step(name, changes)
    record(plan, tmp_path / "step.npz")
    again = load_trace(tmp_path / "step.npz")
    assert (again.schedule, again.tensors, again.work) == (plan.schedule, plan.tensors, "train")
    assert analytic(again) == analytic(plan)
    for ours, theirs in zip(plan.launches, again.launches, strict=True):
        assert list(ours.work(0)) == list(theirs.work(0))


def test_are_keys_without_the_prefix_the_forward_passs() -> None:
    plan = step("flash2", {"tile_q": 48, "backward.tile_q": 16})
    assert (plan.schedule.forward.tile_q, plan.schedule.backward.tile_q) == (48, 16)
    assert plan.schedule.to_dict()["backward.tile_q"] == 16
    with pytest.raises(ValueError, match="schedule key 'tile_z' is not one of"):
        step("flash2", {"backward.tile_z": 16})


def test_is_an_algorithm_that_cannot_be_trained_refused_by_name() -> None:
    with pytest.raises(ValueError, match="algorithm 'flash2_backward' cannot be trained; those that can are naive"):
        step("flash2_backward")


def test_are_passes_that_do_not_fit_together_refused() -> None:
    problem = AttentionProblem(**SHAPE)
    flash, naive = (
        passes_of(n, problem, default_train_schedule(n, problem, "wgmma", 132)) for n in ("flash2", "naive")
    )
    with pytest.raises(ValueError, match="naive_backward needs P, which flash2 does not leave"):
        train_plan(flash[0], naive[1])
    with pytest.raises(ValueError, match="same problem"):
        train_plan(flash[0], step("flash2", seq=80))


def test_does_a_gradient_agree_with_finite_differences() -> None:
    """Once, against the forward algorithm itself, in fp32: d(sum of dO O) along a random direction of each input."""
    problem = AttentionProblem(heads=2, kv_heads=1, seq=24, seq_kv=33, dim=16, causal=True, dtype="fp32")
    plan = train_plan(*passes_of("flash2", problem, default_train_schedule("flash2", problem, "wgmma", 132)))
    inputs = normal_inputs(plan, 5)
    found = numeric.run(plan, inputs)
    random = np.random.default_rng(6)
    for name in ("Q", "K", "V"):
        direction = random.standard_normal(inputs[name].shape).astype(np.float32)
        step_size = 1e-2
        ends = [numeric.run(plan, inputs | {name: inputs[name] + sign * step_size * direction}) for sign in (1, -1)]
        losses = [float((end["O"].astype(float) * inputs["dO"]).sum()) for end in ends]
        slope = float((found[f"d{name}"].astype(float) * direction).sum())
        assert (losses[0] - losses[1]) / (2 * step_size) == pytest.approx(slope, rel=2e-3), name
