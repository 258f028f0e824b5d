"""Are the published rows read as what they are, and errors computed from them?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments import fa3_h100
from experiments.fa3_h100 import Outcome, PublishedRow, main, published_rows
from gpusim.spec import GpuSpec


def test_do_all_published_rows_have_the_same_width_and_layout() -> None:
    problems = [row.problem for row in published_rows()]
    assert len(problems) == 16 and sum(p.causal for p in problems) == 8
    assert {(p.heads * p.dim, p.layout, p.dtype) for p in problems} == {(2048, "bshd", "fp16")}
    assert {p.batch * p.seq for p in problems} == {8192, 32768}


def test_does_no_row_beat_the_peak_of_the_card() -> None:
    peak = 132 * 4096 * 1.5e9
    assert all(row.problem.flops() / peak < row.measured_us * 1e-6 for row in published_rows())


@pytest.fixture
def half_as_long(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that takes half the measured time; the clocks it ran at."""
    clocks: list[str] = []

    def simulate_row(row: PublishedRow, gpu: GpuSpec, changes: dict[str, str]) -> Outcome:
        clocks.append(f"{gpu.name} {gpu.sm.sustained_clock_hz / 1e6:.0f}")
        return Outcome(row, row.measured_us / 2, 0.25)

    monkeypatch.setattr(fa3_h100, "simulate_row", simulate_row)
    return clocks


@pytest.mark.parametrize(("arguments", "rows"), [([], 16), (["--match", "d128 causal"], 4)])
def test_is_the_error_that_of_simulated_against_measured_time(
    half_as_long: list[str], capsys: pytest.CaptureFixture[str], arguments: Sequence[str], rows: int
) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert half_as_long == ["h100-sxm 1500"] * rows
    assert out.count("-50.0") == rows
    assert "error of time: mean 50.0 %, largest 50.0 %" in out and f"{rows / 4:.1f} s for {rows} rows" in out


def test_is_a_match_without_rows_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--match", "d96"])
    assert "--match 'd96' leaves no row" in capsys.readouterr().err
