"""Does simulated traffic of FlashAttention-1 fall as the inverse of SRAM, until only compulsory traffic is left?"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.sram_law import Point, exponent, main, sweep
from gpusim.spec import load_gpu
from traces.problem import AttentionProblem

SMALL = ["sm.count=4", "l2.size=1MiB", "hbm.bandwidth=58GB/s"]
"""A 27th of an A100: four SMs, whose heads do not fit into the L2 together, and their share of HBM bandwidth."""
KIB = 1 << 10


@pytest.fixture(scope="module")
def points() -> list[Point]:
    problem = AttentionProblem(heads=8, seq=1024, dim=64)
    return sweep(load_gpu("a100-40gb-sxm", SMALL), problem, [size * KIB for size in (32, 64, 128, 256, 512, 2048)])


@pytest.mark.parametrize("level", ["l2", "hbm"])
def test_do_bytes_beyond_compulsory_fall_as_one_over_m(points: list[Point], level: str) -> None:
    assert -1.15 <= exponent(points, level) <= -0.85


def test_is_only_compulsory_traffic_left_when_a_head_fits(points: list[Point]) -> None:
    last = points[-1]
    assert last.passes == 1 and last.hbm_bytes == last.l2_bytes == last.least_bytes
    traffic = [p.hbm_bytes for p in points]
    assert traffic == sorted(traffic, reverse=True) and traffic[0] > 15 * last.hbm_bytes


def test_does_the_command_print_the_law_and_write_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "sram.html"
    shape = ["--batch", "1", "--heads", "4", "--seq", "256", "--sizes", "32,48,128", "--html", str(target)]
    overrides = [word for setting in SMALL for word in ("--set", setting)]
    assert main([*shape, *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[-1].startswith("bytes beyond compulsory: L2 M^-")
    assert 'id="traffic"' in target.read_text(encoding="utf-8")
    assert main(["--sizes", "2"]) == 2
