"""Do two CTAs on an SM drift apart as far, and as much alike on all SMs, as on the card?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpusim.machine import simulate
from gpusim.spec import load_gpu
from kernels_cupy.cta_file import read_ctas
from tests.gpusim.simulations import plan_of
from traces.cta_times import CtaTimes

MEASURED = Path(__file__).parents[3] / "experiments" / "measured" / "h200" / "ctas" / "flash2_16h_4096.csv"


def lead(times: CtaTimes) -> np.ndarray:
    """By how many cycles one CTA of each SM's first two ends before the other."""
    first = [np.flatnonzero((times.sm == sm) & times.first_wave) for sm in np.unique(times.sm)]
    return np.array([np.ptp(times.end_clock[own]) for own in first if len(own) == 2])


def test_does_the_older_of_two_ctas_end_as_far_ahead_as_on_the_h200() -> None:
    plan = plan_of("flash2", {"tile_q": 128, "tile_kv": 64}, heads=16, seq=4096, dim=128)
    (kernel,) = simulate(plan, load_gpu("h200"), l2="flush", record_ctas=True).kernels
    (card,) = read_ctas(MEASURED).launches
    assert kernel.cta_times is not None
    here, there = lead(kernel.cta_times), lead(card)
    assert len(here) == len(there) == 132
    assert np.median(here) == pytest.approx(np.median(there), rel=0.15)
    assert np.std(here) < 0.1 * np.median(here), "all SMs prefer their older CTA alike"
