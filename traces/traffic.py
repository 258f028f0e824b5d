"""Bytes by tensor, and the pieces of closed forms that algorithms share."""

from __future__ import annotations

from traces.launch import Plan

Traffic = dict[str, tuple[int, int]]
"""Tensor name → (bytes read, bytes written)."""


def total(traffic: Traffic) -> int:
    """Bytes read and written, over all tensors."""
    return sum(read + written for read, written in traffic.values())


def sizes(plan: Plan) -> dict[str, int]:
    """Bytes of every tensor in memory."""
    return {t.name: t.size_bytes for t in plan.tensors}


def blocks(length: int, tile: int) -> int:
    """Tiles that cover `length`, the last one perhaps in part."""
    return -(-length // tile)


def read_once(plan: Plan, *names: str) -> Traffic:
    """Each of the named tensors read in full, once."""
    return {name: (plan.tensor(name).size_bytes, 0) for name in names}


def written_once(plan: Plan, *names: str) -> Traffic:
    """Each of the named tensors written in full, once."""
    return {name: (0, plan.tensor(name).size_bytes) for name in names}
