"""Are errors, statistics and targets what arithmetic says?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.accuracy.cases import Case, shape_class, torch_cases
from experiments.accuracy.quantities import FIELDS, QUANTITIES, Target
from experiments.accuracy.rows import Row, paired, statistics, worst
from experiments.accuracy.simulated import Kernel, read_stored, write_stored
from experiments.accuracy.text import markdown, suite_text, to_csv
from traces.problem import AttentionProblem

BY_FIELD = {q.field: q for q in QUANTITIES}


@pytest.fixture(scope="module")
def case() -> Case:
    (found,) = [c for c in torch_cases() if c.label == "naive B1_H1_N4096_d128 warm"]
    return found


def rows(case: Case, **scaled: float) -> list[Row]:
    """The case's kernels, simulated as measured apart from fields times a factor."""
    kernels = [Kernel("k", {f: m[f] * scaled.get(f, 1) for f in FIELDS}) for m in case.measured]
    return paired(case, kernels)


def test_has_a_perfect_simulation_no_error(case: Case) -> None:
    for quantity in QUANTITIES:
        figures = statistics(rows(case), quantity)
        assert figures.mean in (0, None) and figures.small_largest in (0, None)
        assert figures.count + figures.small == 3 and figures.meets(Target(0)) is True
        assert figures.correlation is None or figures.correlation == pytest.approx(1)


def test_are_errors_relative_or_points(case: Case) -> None:
    changed = rows(case, cycles=1.1, l2_hit_rate=0.5)
    cycles, rate = (statistics(changed, BY_FIELD[f]) for f in ("cycles", "l2_hit_rate"))
    assert (cycles.mean, cycles.largest, cycles.bias) == (pytest.approx(10),) * 3
    assert rate.mean == pytest.approx(50 * sum(m["l2_hit_rate"] for m in case.measured) / 3)
    assert cycles.meets(Target(10.1)) and not cycles.meets(Target(9.9)) and not cycles.meets(Target(11, 9))
    assert cycles.meets(None) is None


@pytest.mark.parametrize(("factor", "met"), [(1.4, True), (1.6, False)])
def test_is_little_dram_traffic_judged_by_its_difference(case: Case, factor: float, met: bool) -> None:
    quantity = BY_FIELD["dram_read_bytes"]
    (small,) = [row for row in rows(case, dram_read_bytes=factor) if row.difference(quantity) is not None]
    measured = small.measured["dram_read_bytes"]
    assert 1.7e6 < measured < 2.5e6 and small.error(quantity) is None  # so 1 MB is between 40 and 60 %
    assert small.difference(quantity) == pytest.approx((factor - 1) * measured / 1e6)
    assert statistics([small], quantity).meets(Target(5)) is met


def test_are_the_worst_those_furthest_from_a_target(case: Case) -> None:
    ((row, quantity, error), *_) = worst(rows(case, cycles=1.2, l2_read_bytes=1.15), QUANTITIES)
    assert (quantity.field, error) == ("l2_read_bytes", pytest.approx(15)) and row.case is case


def test_is_another_number_of_kernels_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="1 kernels simulated, 3 measured"):
        paired(case, [Kernel("k", case.measured[0])])


def test_are_fitted_paths_calibration_and_the_others_held_out() -> None:
    held = {c.algorithm: c.held_out for c in torch_cases()}
    assert held == {
        "naive": False, "cudnn": False, "cudnn_causal": False,
        "naive_bwd": True, "flash_bwd": True, "decode_flash": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ({"heads": 1, "seq": 64}, "one head"),
        ({"heads": 2, "seq": 64}, "many heads"),
        ({"batch": 2, "heads": 1, "seq": 64}, "many sequences"),
        ({"batch": 2, "heads": 1, "seq": 1, "seq_kv": 64}, "decoding"),
    ],
)
def test_is_the_shape_class_told(shape: dict[str, int], name: str) -> None:
    assert shape_class(AttentionProblem(**shape)) == name


def test_do_the_tables_say_calibration_and_held_out_apart(case: Case) -> None:
    both = [*rows(case, cycles=1.1), *(replace(r, case=replace(case, held_out=True)) for r in rows(case, cycles=1.3))]
    text, table = suite_text(both, "both"), markdown(both, {"torch": 3})
    assert "calibration" in text and "held out" in text and "worst kernels" in text
    (line,) = [line for line in table.splitlines() if line.startswith("| cycles")]
    assert line == "| cycles | 10.0 %, max 10.0 % (3) | 30.0 %, max 30.0 % (3) | 10 % | missed |"
    assert "3 kernels" not in table and "6 kernels of 1 runs (2 more are measured, but not simulated yet)" in table
    assert "Kernels of this repository**: not measured yet" in table
    assert len(to_csv(both).splitlines()) == 7


def test_is_what_is_stored_what_was_simulated(case: Case, tmp_path: Path) -> None:
    stored = {(case.suite, case.label): tuple(Kernel(f"k{i}", m) for i, m in enumerate(case.measured))}
    write_stored(stored, path=tmp_path / "x.csv")
    ((key, kernels),) = read_stored(path=tmp_path / "x.csv").items()
    assert key == (case.suite, case.label) and [k.name for k in kernels] == ["k0", "k1", "k2"]
    for kernel, measured in zip(kernels, case.measured, strict=True):
        assert kernel.values == pytest.approx(measured, rel=1e-11)
    assert read_stored(path=tmp_path / "missing.csv") == {}
