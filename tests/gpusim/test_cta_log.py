"""Is every simulated CTA noted once, where there was room for it, and without touching the simulation?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpusim.machine import L2_STARTS, simulate
from gpusim.result import KernelResult
from gpusim.sm.occupancy import ctas_per_sm
from gpusim.spec import load_gpu
from tests.gpusim.simulations import plan_of
from tests.traces.problems import ATTENTION
from traces.cta_times import CtaTimes
from traces.launch import Plan

H200 = load_gpu("h200")
SHAPE: dict[str, Any] = {"heads": 128, "seq": 640, "dim": 64, "causal": True}
"""CTAs of unequal work, in most algorithms more than fit at once."""


def recorded(plan: Plan, l2: str = "cold") -> list[tuple[KernelResult, CtaTimes]]:
    """Every kernel with its CTAs."""
    kernels = simulate(plan, H200, l2, record_ctas=True).kernels
    return [(kernel, kernel.cta_times) for kernel in kernels if kernel.cta_times is not None]


def waves(algorithm: str) -> Plan:
    """The plan of `SHAPE`, of fewer heads where the softmax has a CTA for every row."""
    if algorithm.startswith("naive"):
        return plan_of(algorithm, **SHAPE | {"heads": 8})
    decoding = {"batch": 48, "heads": 8, "seq": 1, "causal": False} if ATTENTION[algorithm].order >= 200 else {}
    return plan_of(algorithm, **SHAPE | decoding)


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_is_every_cta_noted_where_there_was_room_for_it(algorithm: str) -> None:
    plan = waves(algorithm)
    kernels = recorded(plan)
    assert [times.kernel for _, times in kernels] == [launch.name for launch in plan.launches]
    for launch, (kernel, times) in zip(plan.launches, kernels, strict=True):
        assert times.ctas == launch.ctas
        assert np.all((times.sm >= 0) & (times.sm < H200.sm.count))
        assert np.all(times.duration_cycles >= 0) and times.duration_cycles.max() > 0
        assert times.resident <= ctas_per_sm(H200, launch.resources, launch.name) == kernel.ctas_per_sm
        assert times.start_clock.min() == pytest.approx(kernel.start_cycle + H200.sm.kernel_overhead_cycles, abs=64)
        assert times.end_clock.max() == pytest.approx(kernel.start_cycle + kernel.cycles)
        assert times.start_ns.min() == 0 and times.clock_ghz == pytest.approx(kernel.clock_hz / 1e9)


@pytest.mark.parametrize("algorithm", ("flash2", "flash3", "naive"))
def test_does_the_first_wave_follow_the_order_of_the_hardware(algorithm: str) -> None:
    for kernel, times in recorded(waves(algorithm)):
        wave = min(times.ctas, H200.sm.count * kernel.ctas_per_sm)
        order = np.resize(H200.sm.placement(times.ctas), wave)
        assert times.sm[:wave].tolist() == order.tolist()


def test_does_a_cta_start_a_turnover_after_the_one_before_it() -> None:
    plan = waves("flash2")
    ((_, times),) = recorded(plan)
    assert not times.first_wave.all()
    warps = plan.launches[0].resources.threads // 32
    turnover = H200.sm.cta_turnover_cycles + warps * H200.sm.warp_launch_cycles
    for sm in range(H200.sm.count):
        for place in range(times.resident):
            own = np.flatnonzero((times.sm == sm) & (times.place == place))
            own = own[np.argsort(times.start_clock[own])]
            gaps = times.start_clock[own][1:] - times.end_clock[own][:-1]
            assert np.all(np.abs(gaps - turnover) <= 8), "turns of an SM look 8 cycles ahead"


@pytest.mark.parametrize("l2", L2_STARTS)
def test_does_noting_not_change_the_simulation(l2: str) -> None:
    plan = plan_of("naive", heads=2, seq=512, dim=64)
    with_log, without = simulate(plan, H200, l2, record_ctas=True), simulate(plan, H200, l2)
    assert np.array_equal(with_log.counts, without.counts) and with_log.cycles == without.cycles
    assert all(kernel.cta_times is None for kernel in without.kernels)
    assert all(kernel.cta_times is not None for kernel in with_log.kernels)


def test_is_a_cta_without_work_noted_as_one_that_takes_no_time() -> None:
    """A grid of whole clusters over one row of tiles: half of the CTAs have no tile."""
    plan = plan_of("naive", {"cluster_m": 2, "pv_cluster_m": 2, "persistent": False}, heads=2, seq=64, dim=64)
    (_, times), *_ = recorded(plan)
    assert (times.duration_cycles == 0).sum() * 2 == times.ctas


def test_does_the_command_write_what_was_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpusim.cli.main import main
    from kernels_cupy.cta_file import read_ctas

    path = tmp_path / "ctas.csv"
    shape = ["--heads", "2", "--seq", "512", "--dim", "64"]
    assert main(["simulate", "naive", *shape, "--l2", "flush", "--ctas", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    found = read_ctas(path)
    plan = plan_of("naive", heads=2, seq=512, dim=64)
    assert (found.algorithm, found.problem, found.l2) == ("naive", plan.problem, "flush")
    for (_, ours), theirs in zip(recorded(plan, "flush"), found.launches, strict=True):
        assert ours.kernel == theirs.kernel and np.array_equal(ours.sm, theirs.sm)
        assert theirs.end_clock == pytest.approx(ours.end_clock) and theirs.end_ns == pytest.approx(ours.end_ns)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["naive", "flash2", "--ctas", "x.csv"], "--ctas x.csv holds the CTAs of one ALGO, not of naive, flash2"),
        (["flash2", "--ctas", "missing/x.csv"], "--ctas missing/x.csv: folder missing does not exist"),
        (["flash2", "--ctas", "x.json", "--json", "x.json"], "--ctas x.json is already the target of --json"),
        (["flash2", "--analytic", "--ctas", "x.csv"], "--analytic simulates nothing, so --ctas does not apply"),
    ],
)
def test_is_a_file_that_cannot_be_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpusim.cli.main import main

    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err
