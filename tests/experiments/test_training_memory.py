"""Is the price of recomputing the forward pass what it is said to be?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.training_memory import checkpointed, main, measure, render
from traces.algorithms import ALGORITHMS
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.train import BACKWARD, default_train_schedule, passes_of

TRAINED = [name for name in BACKWARD if name in ALGORITHMS]
PROBLEM = AttentionProblem(heads=2, seq=256, dim=64)


def one_each(plan: Plan) -> Sequence[float]:
    """A machine on which every kernel takes 1 us."""
    return [1.0] * len(plan.launches)


@pytest.mark.parametrize("name", TRAINED)
def test_does_checkpointing_keep_nothing_and_run_the_forward_pass_again(name: str) -> None:
    schedule = default_train_schedule(name, PROBLEM, "wgmma", 132)
    kept, again = measure(name, PROBLEM, schedule, one_each)
    assert kept.kept_bytes > 0 == again.kept_bytes and kept.forward_us == again.forward_us
    plan = checkpointed(name, PROBLEM, schedule)
    repeated = 2 if "naive" in name else len(passes_of(name, PROBLEM, schedule)[0].launches)
    assert again.backward_us - kept.backward_us == repeated
    assert set(plan.inputs) == {"Q", "K", "V", "dO"}
    # Of 2 products forward and 4 or 5 backward, Q K^T alone for naive, both forward ones for FlashAttention.
    assert again.again_flops / kept.flops == pytest.approx(1 / 6 if "naive" in name else 2 / 7)


def test_is_what_is_kept_quadratic_or_linear_in_the_length() -> None:
    for name, growth in (("naive", 4), ("flash2", 2)):
        rows = []
        for seq in (256, 512):
            problem = AttentionProblem(heads=2, seq=seq, dim=64)
            rows.append(measure(name, problem, default_train_schedule(name, problem, "wgmma", 132), one_each)[0])
        assert rows[1].kept_bytes == growth * rows[0].kept_bytes


def test_does_the_table_have_a_line_for_each_choice() -> None:
    rows = [r for n in TRAINED for r in measure(n, PROBLEM, default_train_schedule(n, PROBLEM, "wgmma", 132), one_each)]
    lines = render(rows).splitlines()
    assert sum("again" in line and "kept MiB" not in line for line in lines) == len(TRAINED)
    assert "kept MiB" in lines[0]


def test_is_an_algorithm_that_cannot_be_trained_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["flash2_backward"])
    assert "algorithm 'flash2_backward' is not one of naive" in capsys.readouterr().err
