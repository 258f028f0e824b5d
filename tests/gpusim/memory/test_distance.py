"""How much longer do requests of one SM take than those of another, and what follows from it?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpusim.memory.distance import request_delays
from gpusim.spec.load import load_gpu
from kernels_cupy.commented_csv import read_rows

MEASURED = Path(__file__).parents[3] / "experiments" / "measured" / "h200" / "sm_latency.csv"


def test_are_cpcs_and_tpcs_a_step_apart() -> None:
    gpu = load_gpu("h200", ["noc.cpc_step=3", "noc.tpc_step=5"])
    delays = request_delays(gpu)
    assert delays.mean() == pytest.approx(0)
    gpc = np.flatnonzero(np.array(gpu.sm.gpc_of_sm) == 0)
    steps = [0, 0, 3, 3, 6, 6, -5, -5, -2, -2, 1, 1, -10, -10, -7, -7]
    assert delays[gpc] - delays[gpc[0]] == pytest.approx(steps)


def test_is_every_sm_as_far_where_there_are_no_steps() -> None:
    assert not request_delays(load_gpu("a100-80gb-sxm")).any()


def test_are_the_steps_those_of_the_card() -> None:
    """Each SM of the measured card is where its TPC's place in the GPC says, but for the third CPC's last ones."""
    rows = list(read_rows(MEASURED))
    cycles = np.array([float(row["cycles"]) for row in rows])
    gpu = load_gpu("h200", [f"sm.gpc_of_sm=[{','.join(row['gpc'] for row in rows)}]"])
    off = cycles - cycles.mean() - request_delays(gpu)
    assert np.median(np.abs(off)) < 2 and np.percentile(np.abs(off), 80) < 3
    assert off.std() < cycles.std() / 2
