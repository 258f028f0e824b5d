"""Figures of arithmetic: tensor cores, FP32 lanes, exponentials, shared memory, and the clock under load."""

from __future__ import annotations

import math
from collections.abc import Iterator

from experiments.calibration.figure import Figure, measured, significant
from experiments.calibration.folder import Measurements

__all__ = ["nominal", "rate_figures"]

RATES = "rates.csv"
NEWER = (10, 0)
"""From this compute capability on the tensor cores' own instruction (tcgen05) is not among the benchmarks."""


def nominal(rate: float) -> int:
    """The power of two nearest to a measured rate: what the hardware is built for."""
    return 2 ** round(math.log2(rate)) if rate > 0 else 0


def rate_figures(m: Measurements) -> Iterator[Figure]:
    """All of them that the folder has measurements of."""
    if m.device.capability < NEWER:
        yield from _tensor_cores(m)
    lanes = m.rates.get(("fma", "fp32"))
    if lanes:
        how = f"fma.f32 reaches {lanes.per_clk:.0f} FLOP/clk/SM, the nearest power of two taken"
        yield measured("sm.fp32_lanes", nominal(lanes.per_clk / 2), how, RATES)
    exponentials = m.rates.get(("exp", "fp32"))
    if exponentials:
        how = f"ex2.f32 reaches {exponentials.per_clk:.4g}/clk/SM"
        yield measured("sm.exp_per_clk", round(exponentials.per_clk), how, RATES)
    shared = m.rates.get(("shared", "read"))
    if shared:
        how = f"16-byte loads without conflicts reach {shared.per_clk:.4g} B/clk, the nearest power of two taken"
        yield measured("sm.shared_bandwidth", f"{nominal(shared.per_clk)}B/clk", how, RATES)
    clock = m.sustained_clock_hz
    if clock:
        how = "median clock while the tensor cores of all SMs multiply without a pause"
        yield measured("sm.sustained_clock", f"{significant(clock / 1e6, 4)}MHz", how, RATES)


def _tensor_cores(m: Measurements) -> Iterator[Figure]:
    """Rates by precision of the faster instruction, and what share of the fp16 rate each instruction reaches."""
    best: dict[str, tuple[float, str]] = {}
    for (instruction, precision), rate in m.rates.items():
        if instruction in ("mma", "wgmma"):
            best[precision] = max(best.get(precision, (0.0, "")), (rate.per_clk, instruction))
    for precision, (rate_per_clk, instruction) in best.items():
        how = f"{instruction} reaches {rate_per_clk:.0f} FLOP/clk/SM, the nearest power of two taken"
        yield measured(f"sm.tensor_flops.{precision}", nominal(rate_per_clk), how, RATES)
    for instruction, key in (("mma", "mma_sync_efficiency"), ("wgmma", "wgmma_efficiency")):
        reached = m.rates.get((instruction, "fp16"))
        if reached:
            peak = nominal(best["fp16"][0])
            how = f"back to back, {instruction} in fp16 reaches {reached.per_clk:.0f} of {peak} FLOP/clk/SM"
            yield measured(f"sm.{key}", significant(min(1.0, reached.per_clk / peak), 3), how, RATES)
