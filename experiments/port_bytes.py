"""Bytes that a plan moves through the SM ports and asks of the L2, counted from its programs without simulating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, WorkItem
from traces.ops import Load, Op, Reduce, Store, Vector

__all__ = ["PortBytes", "port_bytes"]


@dataclass(frozen=True, slots=True)
class PortBytes:
    """Traffic of one launch, bytes.

    Attributes:
        sm_read: received by the SMs; a multicast tile arrives at every SM of the cluster.
        sm_write: sent by the SMs.
        l2_read_unmerged: asked of the L2 if no two requests merge; a multicast tile is asked for once per cluster.
    """

    sm_read: int
    sm_write: int
    l2_read_unmerged: int


def port_bytes(launch: KernelLaunch) -> PortBytes:
    """Count one launch. Work items of equal shape are executed once and multiplied."""
    known: dict[Any, tuple[int, int, int]] = {}
    read = write = asked = 0
    for cta in range(launch.work_count):
        for item in launch.work(cta):
            key = item.shape_key()
            if key not in known:
                known[key] = _count(launch, item)
            item_read, item_write, item_asked = known[key]
            read, write, asked = read + item_read, write + item_write, asked + item_asked
    return PortBytes(read, write, asked)


def _count(launch: KernelLaunch, item: WorkItem) -> tuple[int, int, int]:
    counter = _Counter()
    run_agents(launch.agents(item.matrices(), item.parameters), counter, BarrierState())
    return counter.read, counter.write, counter.asked


class _Counter:
    """Adds up tile sizes; every value is a stand-in."""

    def __init__(self) -> None:
        self.read = self.write = self.asked = 0

    def perform(self, agent: int, op: Op) -> Any:
        match op:
            case Load(tile, multicast, _):
                self.read += tile.size_bytes
                self.asked += tile.size_bytes // multicast
            case Store(tile) | Reduce(tile):
                self.write += tile.size_bytes
            case Vector(results=results) if results > 1:
                return (None,) * results
        return None
