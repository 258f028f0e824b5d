"""A server (slice, fabric, memory-side cache) is the time until it is free."""

from __future__ import annotations

from typing import Any

from gpusim.jit import njit


@njit
def queue(free: Any, index: int, t: float, work: float) -> float:
    """Enter a server's queue at `t` with `work` cycles; returns the wait before service."""
    start = free[index]
    if start < t:
        start = t
    free[index] = start + work
    return start - t
