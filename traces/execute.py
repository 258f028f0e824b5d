"""Runs the agents of a CTA cooperatively: the one place that knows what barriers mean without time.

The numeric driver, the recorder and the simulator's compiler all run programs through `run_agents`; they differ only
in the `Handler` that gives each operation its value. Agents advance in turn until each is blocked or done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from traces.ops import Arrive, Await, Barrier, Op, Program


class Handler(Protocol):
    """Gives an operation its value; called once per operation, in an order that barriers allow."""

    def perform(self, agent: int, op: Op) -> Any:
        """The value that `yield op` returns to agent number `agent`."""
        ...


class Deadlock(RuntimeError):
    """Every unfinished agent awaits a barrier that nobody will complete."""


class BarrierState:
    """Arrivals and phases of one CTA's barriers; lives as long as the CTA."""

    def __init__(self) -> None:
        self._phases: dict[Barrier, int] = {}
        self._arrivals: dict[Barrier, int] = {}
        self._seen: dict[tuple[int, Barrier], int] = {}

    def arrive(self, barrier: Barrier) -> None:
        count = self._arrivals.get(barrier, 0) + 1
        if count == barrier.count:
            self._phases[barrier] = self._phases.get(barrier, barrier.open_phases) + 1
            count = 0
        self._arrivals[barrier] = count

    def ready(self, agent: int, barrier: Barrier) -> bool:
        """Whether the agent's next phase of `barrier` is complete; counts it as seen if so."""
        seen = self._seen.get((agent, barrier), 0)
        if self._phases.get(barrier, barrier.open_phases) > seen:
            self._seen[agent, barrier] = seen + 1
            return True
        return False


def run_agents(agents: Sequence[Program], handler: Handler, barriers: BarrierState) -> None:
    """Run all agents of one work item to their end.

    Raises:
        Deadlock: no agent can advance.
    """
    pending: list[Op | None] = [next(agent, None) for agent in agents]
    while any(op is not None for op in pending):
        advanced = False
        for number, agent in enumerate(agents):
            op = pending[number]
            while op is not None:
                if isinstance(op, Await) and not barriers.ready(number, op.barrier):
                    break
                value = handler.perform(number, op)
                if isinstance(op, Arrive):
                    barriers.arrive(op.barrier)
                advanced = True
                try:
                    op = agent.send(value)
                except StopIteration:
                    op = None
            pending[number] = op
        if not advanced:
            waiting = [op.barrier.name for op in pending if isinstance(op, Await)]
            raise Deadlock(f"agents wait for each other at barriers {waiting}")
