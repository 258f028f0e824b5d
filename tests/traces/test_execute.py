"""Do waits and barriers mean what they say, without time?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from traces import numeric
from traces.dtypes import DTYPES
from traces.execute import BarrierState, Deadlock, run_agents
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Op, Program, Store, Wait
from traces.problem import AttentionProblem
from traces.tensor import Matrix, TensorTable


def _copy(agents: Callable[[Matrix, Matrix], tuple[Program, ...]]) -> np.ndarray:
    """Runs agents on X (ones, 4x4) and Y (nothing yet) and returns Y."""
    table = TensorTable()
    x, y = (table.add(name, (1, 1, 4, 4), DTYPES["fp32"]) for name in "XY")
    launch = KernelLaunch(
        "copy",
        1,
        CtaResources(32, 32, 0),
        lambda cta: [WorkItem((x.view(0, 0), y.view(0, 0)), ())],
        lambda matrices, _: agents(*matrices),
    )
    plan = Plan("copy", AttentionProblem(), None, table.tensors, (launch,), ("X",), ("Y",))
    return numeric.run(plan, {"X": np.ones((1, 1, 4, 4), np.float32)})["Y"]


@pytest.mark.parametrize("waits", [False, True])
def test_does_reading_a_load_before_its_wait_give_nan(waits: bool) -> None:
    def agent(x: Matrix, y: Matrix) -> Program:
        value = yield Load(x.tile(0, 4))
        if waits:
            yield Wait(value)
        yield Store(y.tile(0, 4), value)

    assert (
        np.all(_copy(lambda x, y: (agent(x, y),)) == 1)
        if waits
        else np.all(np.isnan(_copy(lambda x, y: (agent(x, y),))))
    )


@pytest.mark.parametrize("waits", [False, True])
def test_does_reading_an_asynchronous_product_before_its_wait_give_nan(waits: bool) -> None:
    def agent(x: Matrix, y: Matrix) -> Program:
        value = yield Load(x.tile(0, 4))
        yield Wait(value)
        product = yield Matmul(value, value, (4, 4, 4), asynchronous=True)
        if waits:
            yield Wait(product)
        yield Store(y.tile(0, 4), product)

    result = _copy(lambda x, y: (agent(x, y),))
    assert np.all(result == 4) if waits else np.all(np.isnan(result))


@pytest.mark.parametrize("arrives_after_load", [False, True])
def test_does_a_barrier_hand_over_only_what_arrived_at_it(arrives_after_load: bool) -> None:
    full = Barrier("full")
    buffer = []

    def producer(x: Matrix) -> Program:
        buffer.append((yield Load(x.tile(0, 4))))
        yield Arrive(full, after=buffer[0] if arrives_after_load else None)

    def consumer(y: Matrix) -> Program:
        yield Await(full)
        yield Store(y.tile(0, 4), buffer[0])

    result = _copy(lambda x, y: (consumer(y), producer(x)))
    assert np.all(result == 1) if arrives_after_load else np.all(np.isnan(result))


class _Log:
    def __init__(self) -> None:
        self.ops: list[tuple[int, str]] = []

    def perform(self, agent: int, op: Op) -> None:
        self.ops.append((agent, type(op).__name__))


def test_is_a_deadlock_reported_with_its_barriers() -> None:
    def agent(mine: Barrier, other: Barrier) -> Program:
        yield Await(other)
        yield Arrive(mine)

    a, b = Barrier("a"), Barrier("b")
    with pytest.raises(Deadlock, match=r"barriers \['b', 'a'\]"):
        run_agents([agent(a, b), agent(b, a)], _Log(), BarrierState())


def test_does_a_phase_take_all_its_arrivals_and_open_phases_none() -> None:
    state, gate, free = BarrierState(), Barrier("gate", count=2), Barrier("free", open_phases=1)
    assert state.ready(0, free) and not state.ready(0, free)
    state.arrive(gate)
    assert not state.ready(0, gate)
    state.arrive(gate)
    assert state.ready(0, gate) and not state.ready(0, gate)
    assert state.ready(1, gate), "each agent sees a phase for itself"


def test_do_barriers_live_from_one_work_item_to_the_next() -> None:
    gate = Barrier("gate")

    def arrives() -> Program:
        yield Arrive(gate)

    def awaits() -> Program:
        yield Await(gate)

    state = BarrierState()
    run_agents([arrives()], _Log(), state)
    run_agents([awaits()], _Log(), state)
    with pytest.raises(Deadlock):
        run_agents([awaits()], _Log(), state)
