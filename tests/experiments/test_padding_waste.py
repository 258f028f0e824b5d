"""Does padding cost what the lengths say?"""

from __future__ import annotations

import pytest

from experiments.padding_waste import main, measure, table
from gpusim.spec import load_gpu
from tests.traces.problems import default_plan, stream, work_items
from traces.launch import Plan
from traces.ops import Matmul
from traces.problem import AttentionProblem


def score_flops(plan: Plan, kernel: str, sequence: int) -> int:
    """Operations that one kernel spends on one sequence."""
    known: dict[object, int] = {}
    total = 0
    for launch, _, item in work_items(plan):
        if launch.name == kernel and item.views[0].batch == sequence:
            if item.shape_key() not in known:
                shapes = [op.shape for _, op in stream(launch, item).ops if isinstance(op, Matmul)]
                known[item.shape_key()] = sum(2 * m * n * k for m, n, k in shapes)
            total += known[item.shape_key()]
    return total


@pytest.mark.parametrize("algorithm", ["naive", "naive_online_softmax"])
def test_does_padding_1024_rows_to_2048_waste_three_quarters_of_the_scores(algorithm: str) -> None:
    plan = default_plan(algorithm, heads=1, lengths=(2048, 1024), dim=64)
    assert score_flops(plan, "qk", sequence=0) == score_flops(plan, "qk", sequence=1) == 2 * 2048**2 * 64
    useful = 2 * plan.problem.visible_pairs(1) * 64
    assert 1 - useful / score_flops(plan, "qk", sequence=1) == 0.75


def test_does_packing_waste_nothing_where_lengths_are_whole_tiles() -> None:
    problem = AttentionProblem(heads=2, lengths=(256, 128), dim=64)
    gpu = load_gpu("h200")
    padded, packed = (measure(algorithm, problem, gpu) for algorithm in ("naive", "flash2"))
    useful = 2 * 4 * 64 * (256**2 + 128**2)
    assert padded.useful_flops == packed.useful_flops == packed.executed_flops == useful
    assert padded.executed_flops == 2 * 4 * 64 * 2 * 256**2
    assert (padded.wasted, packed.wasted) == (1 - useful / padded.executed_flops, 0)
    # Q, K, V of 384 rows from HBM, O and the LSE back; padded: of 512 rows, and S and P.
    assert packed.hbm_bytes == 2 * 384 * (4 * 64 * 2 + 4)
    assert padded.hbm_bytes == 2 * 512 * (4 * 64 + 2 * 256) * 2
    assert len(table([padded, packed]).splitlines()) == 3


def test_are_wrong_lengths_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--lengths", "0,0"])
    assert "lengths has no sequence of at least one row" in capsys.readouterr().err
