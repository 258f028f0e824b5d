"""CTAs, measured and simulated, as plain text: what `gpusim compare --ctas --json` writes (`docs/json.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpusim.report.comparison import aligned, heading

__all__ = ["render_text"]

HEAD = ("kernel", "", "measured", "simulated", "difference")
ROWS: Mapping[str, tuple[str, int]] = {
    "resident": ("CTAs at a time on an SM", 0),
    "clock_ghz": ("SM clock, GHz", 3),
    "span_cycles": ("first start to last end, cycles", 0),
    "starting_cycles": ("  before a place's first CTA", 0),
    "running_cycles": ("  running CTAs", 0),
    "between_cycles": ("  between CTAs", 0),
    "ending_cycles": ("  idle at the end", 0),
    "duration_p5_cycles": ("a CTA, 5th percentile, cycles", 0),
    "duration_p50_cycles": ("  median", 0),
    "duration_p95_cycles": ("  95th percentile", 0),
    "first_starts_cycles": ("first wave starts within, cycles", 0),
    "first_ends_cycles": ("  and ends within (5th to 95th)", 0),
}
"""Field → its name and decimals."""
OF_SPAN = ("starting_cycles", "running_cycles", "between_cycles", "ending_cycles")
"""Fields whose difference is shown in percent of the measured time of the launch."""


def render_text(comparison: Mapping[str, Any]) -> str:
    """Each kernel's fields on both sides, where its CTAs ran, and what its difference points to."""
    rows = [list(HEAD)]
    for kernel in comparison["kernels"]:
        rows += [[kernel["name"] if number == 0 else "", *_cells(kernel, field)] for number, field in enumerate(ROWS)]
    conclusions = map(_conclusion, comparison["kernels"])
    return "\n".join([*heading(comparison), "", *aligned(rows), "", *conclusions]) + "\n"


def _cells(kernel: Mapping[str, Any], field: str) -> list[str]:
    name, decimals = ROWS[field]
    measured, simulated = kernel[field]["measured"], kernel[field]["simulated"]
    whole = kernel["span_cycles"]["measured"] if field in OF_SPAN else measured
    percent = f"{round(100 * (simulated - measured) / whole, 1) + 0.0:+.1f} %" if whole else ""  # never -0.0
    return [name, f"{measured:,.{decimals}f}", f"{simulated:,.{decimals}f}", percent]


def _conclusion(kernel: Mapping[str, Any]) -> str:
    points_to = kernel["points_to"]
    return (
        f"{kernel['name']}: {kernel['same_sm']:.1%} of {kernel['ctas']:,} CTAs ran on the same SM, "
        f"{kernel['same_sm_first_wave']:.1%} of the first wave; "
        + (f"the largest difference is one of {points_to}" if points_to else "no part differs by 1 % of the time")
    )
