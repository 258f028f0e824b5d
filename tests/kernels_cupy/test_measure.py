"""Does the table of a measurement say what was recorded of CTAs?"""

from __future__ import annotations

import numpy as np

from kernels_cupy import measure
from kernels_cupy.cta_record import Recorded
from kernels_cupy.measure import Measurement, render
from tests.kernels_cupy.compiling import plan_of
from traces.cta_times import CtaTimes

SM = np.array([0, 1, 0, 1, 1])
START = np.array([0.0, 32.0, 64.0, 700.0, 1500.0])
END = np.array([400.0, 600.0, 1064.0, 1400.0, 3500.0])
TIMES = CtaTimes("flash2_forward", SM, START, END, 2 * START, 2 * END)


def measurement(registers: int) -> Measurement:
    """Of a card of three SMs."""
    kernel = {"name": "flash2_forward", "ctas": 5, "time_us": 4.0, "registers": 64}
    kernel["cta_times"] = measure._summary(TIMES, registers, sm_count=3)
    recorded = Recorded((TIMES,), (registers,), 5.0)
    total = {"name": "total", "ctas": 5, "time_us": 4.0, "flops": 1}
    return Measurement("a card", plan_of("flash2", seq=64), "cold", 3, [kernel], total, None, {}, recorded)


def test_are_ctas_summed_up_in_the_table_and_the_json() -> None:
    said = render(measurement(64))
    assert ["flash2_forward", "0-3", "2", "64", "1,400", "4,000", "64"] in [line.split() for line in said.splitlines()]
    assert "The run that recorded them took 1.250 times the median." in said
    (kernel,) = measurement(64).to_dict()["kernels"]
    assert kernel["cta_times"] == {
        "per_sm_min": 0,
        "per_sm_max": 3,
        "resident": 2,
        "first_starts_ns": 64,
        "duration_median_cycles": 1400,
        "duration_max_cycles": 4000,
        "registers": 64,
    }


def test_are_registers_of_another_build_told_apart() -> None:
    assert "72 (64)" in render(measurement(72))


def test_is_nothing_said_of_ctas_that_were_not_recorded() -> None:
    plan = plan_of("flash2", seq=64)
    kernel = {"name": "flash2_forward", "ctas": 1, "time_us": 4.0, "registers": 64}
    total = {"name": "total", "ctas": 1, "time_us": 4.0, "flops": 1}
    assert "per SM" not in render(Measurement("a card", plan, "cold", 3, [kernel], total, None))
