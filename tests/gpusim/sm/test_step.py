"""Do waits, barriers and work items of an SM take the times that one works out by hand?

A product's result is there `DEPTH` cycles after the tensor cores are free again; a vector step's `SYNC_CYCLES`, and a
jitter of a few more, after the pipes are; an agent that awaits a barrier goes on `BARRIER_CYCLES` after its phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpusim.errors import UserError
from gpusim.machine import _Kernel, simulate
from gpusim.memory.state import MemorySystem
from gpusim.sm.core import BARRIER_CYCLES
from gpusim.sm.pipes import ISSUE_CYCLES
from gpusim.sm.program import SYNC_CYCLES
from gpusim.spec import GpuSpec
from tests.gpusim.sm.toys import PRODUCT, ROW_BYTES, Loads, matmul, near, one_sm, run, toy, vector
from traces.execute import Deadlock
from traces.launch import Plan, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Program, Store, Wait
from traces.tensor import Matrix


def test_does_a_wait_stall_until_the_load_is_complete_and_no_longer() -> None:
    def program(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        yield Wait(tile)
        yield matmul()

    gpu, plan = one_sm(), toy(lambda a: [program(a)])
    assert run(gpu, plan).cycles == pytest.approx(Loads(gpu, plan).done(0, 128, 0.0) + PRODUCT)


def test_do_loads_run_under_products() -> None:
    def program(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        for _ in range(20):
            yield matmul()
        yield Wait(tile)

    gpu, plan = one_sm(), toy(lambda a: [program(a)])
    assert Loads(gpu, plan).done(0, 128, 0.0) < 20 * PRODUCT
    assert run(gpu, plan).cycles == pytest.approx(ISSUE_CYCLES + 20 * PRODUCT)


def test_is_a_store_posted_when_the_port_has_taken_it() -> None:
    def program(a: Matrix) -> Program:
        yield Store(a.tile(0, 16), None)

    gpu = one_sm()
    kernel = run(gpu, toy(lambda a: [program(a)]))
    assert kernel.sm_write_bytes == 16 * ROW_BYTES
    assert kernel.cycles == pytest.approx(16 * ROW_BYTES / gpu.sm.write_port_bytes_per_clk)


def test_does_a_barrier_hand_over_at_the_time_of_the_arrival() -> None:
    ready = Barrier("ready")

    def producer() -> Program:
        yield vector(700)
        yield Arrive(ready)

    def consumer() -> Program:
        yield Await(ready)
        yield matmul()

    assert run(one_sm(), toy(lambda a: [producer(), consumer()])).cycles == near(700 + BARRIER_CYCLES + PRODUCT)
    assert run(one_sm(), toy(lambda a: [consumer(), producer()])).cycles == near(700 + BARRIER_CYCLES + PRODUCT)


def test_does_an_arrival_behind_a_load_complete_with_the_load() -> None:
    full = Barrier("full")

    def producer(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        yield Arrive(full, after=tile)

    def consumer() -> Program:
        yield Await(full)
        yield matmul()

    gpu, plan = one_sm(), toy(lambda a: [producer(a), consumer()])
    assert run(gpu, plan).cycles == pytest.approx(Loads(gpu, plan).done(0, 128, 0.0) + BARRIER_CYCLES + PRODUCT)


def waited(gpu: GpuSpec, plan: Plan) -> float:
    """Cycles that agents spent waiting for memory, over the whole timeline."""
    return float(simulate(plan, gpu, check=True).timeline.activity["memory_wait"].sum())


def test_is_waiting_for_a_load_waiting_for_memory() -> None:
    def program(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        yield matmul()
        yield Wait(tile)
        yield Wait(tile)  # it is there

    gpu, plan = one_sm(), toy(lambda a: [program(a)])
    loaded = Loads(gpu, plan).done(0, 128, 0.0)
    assert waited(gpu, plan) == pytest.approx(loaded - ISSUE_CYCLES - PRODUCT)


@pytest.mark.parametrize("products", (0, 1, 3))
@pytest.mark.parametrize("consumer_first", (True, False))
def test_is_waiting_at_a_barrier_for_loads_waiting_for_memory(products: int, consumer_first: bool) -> None:
    """From when the agent blocks, which may be before the load is issued, until the load is complete."""
    full = Barrier("full", count=2)

    def producer(a: Matrix) -> Program:
        tiles = []
        for row in (0, 128):
            tiles.append((yield Load(a.tile(row, 128))))
        for tile in tiles:
            yield Arrive(full, after=tile)

    def consumer() -> Program:
        for _ in range(products):
            yield matmul()
        yield Await(full)
        yield matmul()

    def agents(a: Matrix) -> list[Program]:
        return [consumer(), producer(a)] if consumer_first else [producer(a), consumer()]

    gpu, plan = one_sm(), toy(agents)
    loads = Loads(gpu, plan)
    loads.done(0, 128, 0.0)
    loaded = loads.done(128, 128, ISSUE_CYCLES)
    assert PRODUCT < loaded < 3 * PRODUCT
    assert waited(gpu, plan) == pytest.approx(max(0.0, loaded - products * PRODUCT))
    started = max(loaded, products * PRODUCT) + BARRIER_CYCLES
    assert run(gpu, plan).cycles == pytest.approx(started + PRODUCT)


def test_is_waiting_at_a_barrier_for_an_agents_work_not_waiting_for_memory() -> None:
    ready = Barrier("ready")

    def producer(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 1))
        yield vector(9000)  # the load ends under it
        yield Wait(tile)
        yield Arrive(ready)

    def consumer() -> Program:
        yield Await(ready)
        yield matmul()

    gpu, plan = one_sm(), toy(lambda a: [producer(a), consumer()])
    assert waited(gpu, plan) == 0
    assert run(gpu, plan).cycles > 9000 + PRODUCT


def test_is_waiting_for_a_product_not_waiting_for_memory() -> None:
    done = Barrier("done")

    def multiplies() -> Program:
        product = yield matmul(asynchronous=True)
        yield Arrive(done, after=product)
        yield Wait(product)

    def waits() -> Program:
        yield Await(done)

    assert waited(one_sm(), toy(lambda a: [multiplies(), waits()])) == 0


@pytest.mark.parametrize("work", (0, 50, 5000))
def test_does_the_later_of_two_arrivals_say_what_was_waited_for(work: int) -> None:
    """Whatever the order in which agents announce them."""
    both = Barrier("both", count=2)

    def loads(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        yield Arrive(both, after=tile)

    def works() -> Program:
        if work:
            yield vector(work)
        yield Arrive(both)

    def waits() -> Program:
        yield Await(both)
        yield matmul()

    gpu, plan = one_sm(), toy(lambda a: [loads(a), works(), waits()])
    loaded = Loads(gpu, plan).done(0, 128, 0.0)
    assert 50 + SYNC_CYCLES < loaded < 5000
    assert waited(gpu, plan) == pytest.approx(0 if work == 5000 else loaded)


@pytest.mark.parametrize("order", ((0, 1, 2), (2, 1, 0), (1, 2, 0)))
def test_does_a_barrier_of_two_wait_for_the_later(order: tuple[int, ...]) -> None:
    both = Barrier("both", count=2)

    def by_matmuls() -> Program:
        for _ in range(3):
            yield matmul()
        yield Arrive(both)

    def by_vector() -> Program:
        yield vector(100)
        yield Arrive(both)

    def waiter() -> Program:
        yield Await(both)
        yield matmul()

    def agents(a: Matrix) -> list[Program]:
        built = [by_matmuls(), by_vector(), waiter()]
        return [built[i] for i in order]

    assert run(one_sm(), toy(agents)).cycles == pytest.approx(4 * PRODUCT + BARRIER_CYCLES)


@pytest.mark.parametrize("stages", (1, 2))
@pytest.mark.parametrize("items", (1, 3))
def test_does_a_ring_of_buffers_hold_the_producer_back(stages: int, items: int) -> None:
    """One buffer: every load waits for the product before it. Two: it waits for the one before that."""
    steps = 4

    def agents(a: Matrix) -> list[Program]:
        full = [Barrier(f"full {s}") for s in range(stages)]
        empty = [Barrier(f"empty {s}", open_phases=1) for s in range(stages)]

        def producer() -> Program:
            for step in range(steps):
                yield Await(empty[step % stages])
                tile = yield Load(a.tile(128 * step, 128))
                yield Arrive(full[step % stages], after=tile)

        def consumer() -> Program:
            for step in range(steps):
                yield Await(full[step % stages])
                yield matmul()
                yield Arrive(empty[step % stages])

        return [producer(), consumer()]

    gpu, plan = one_sm(), toy(agents, items=items)
    loads = Loads(gpu, plan)
    freed = [0.0] * stages
    issued = tensor = 0.0
    for number in range(steps * items):
        item, step = divmod(number, steps)
        issued = max(issued, freed[step % stages]) + BARRIER_CYCLES
        done = loads.done(128 * (item + step), 128, issued)
        tensor = max(tensor, done) + BARRIER_CYCLES + PRODUCT
        freed[step % stages] = tensor
        issued += ISSUE_CYCLES
    assert run(gpu, plan).cycles == pytest.approx(tensor)


def test_does_a_phase_once_seen_not_let_the_same_agent_through_again() -> None:
    turn = Barrier("turn")

    def caller() -> Program:
        for _ in range(3):
            yield matmul()
            yield Arrive(turn)

    def called() -> Program:
        for _ in range(3):
            yield Await(turn)
        yield vector(50)

    assert run(one_sm(), toy(lambda a: [caller(), called()])).cycles == near(3 * PRODUCT + BARRIER_CYCLES + 50)


def test_does_the_next_cta_start_when_one_has_ended() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    plan = toy(lambda a: [program(a)], ctas=5, per_sm=1)
    assert run(one_sm(), plan).cycles == pytest.approx(5 * PRODUCT)
    late = run(one_sm("sm.cta_turnover=100"), plan)
    assert late.cycles == pytest.approx(5 * PRODUCT + 4 * 100)


def test_does_a_persistent_cta_fetch_work_until_there_is_none() -> None:
    def program(a: Matrix) -> Program:
        tile = yield Load(a.tile(0, 128))
        yield Wait(tile)
        yield matmul()

    kernel = run(one_sm(), toy(lambda a: [program(a)], ctas=1, queue=7))
    assert kernel.flops == 7 * 2 * 128 * 128 * 64 and kernel.sm_read_bytes == 7 * 128 * ROW_BYTES
    shared = run(one_sm(), toy(lambda a: [program(a)], ctas=3, queue=7))
    assert shared.flops == kernel.flops and shared.cycles < kernel.cycles


def order_of_work(plan: Plan, *askers: int) -> list[int | None]:
    """Work indices that CTAs get when they ask in this order; None when there is nothing left."""
    indices: list[int] = []
    base = plan.launches[0]

    def work(index: int) -> Sequence[WorkItem]:
        indices.append(index)
        return base.work(index)

    kernel = _Kernel(one_sm(), MemorySystem(one_sm(), plan.tensors), replace(base, work=work), lambda _: None, None)
    return [indices[-1] if kernel._take(cta) else None for cta in askers]


def test_does_a_persistent_cta_keep_its_stride_while_it_keeps_up() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    plan = toy(lambda a: [program(a)], ctas=3, queue=8)
    assert order_of_work(plan, 0, 1, 2, 0, 1, 2, 0, 1, 2) == [0, 1, 2, 3, 4, 5, 6, 7, None]
    assert order_of_work(plan, 0, 1, 2, 2, 1, 0, 1, 0, 0) == [0, 1, 2, 5, 4, 3, 7, 6, None]  # whoever asks first
    assert order_of_work(plan, 0, 1, 2, 1, 1, 1, 1, 1) == [0, 1, 2, 4, 3, 7, 5, 6]  # alone: leaves nothing behind
    clustered = replace(plan, launches=(replace(plan.launches[0], ctas=4, cluster=2),))
    assert order_of_work(clustered, 0, 1, 2, 3, 3, 1, 1, 0, 2) == [0, 1, 2, 3, 7, 5, None, 4, 6]


def test_does_a_persistent_kernel_do_every_work_index_once() -> None:
    def program(a: Matrix) -> Program:
        yield vector(1 + a.rows % 7 * 40)  # uneven work
        tile = yield Load(a.tile(0, a.rows))
        yield Wait(tile)

    queue = 29
    rows = tuple(range(1, queue + 1))
    kernel = run(one_sm("l2.size=inf"), toy(lambda a: [program(a)], ctas=4, queue=queue, rows=rows))
    assert kernel.sm_read_bytes == sum(rows) * ROW_BYTES
    seen = {128 * n + r for n in range(queue) for r in range(rows[n])}
    assert kernel.dram_read_bytes == len(seen) * ROW_BYTES


def test_do_odd_sms_start_their_first_cta_later() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    pair = ("sm.count=2", "sm.tpc_stagger=500")
    alone, both, next_ones = (toy(lambda a: [program(a)], ctas=n, per_sm=1) for n in (1, 2, 4))
    assert run(one_sm(*pair), alone).cycles == pytest.approx(PRODUCT)
    assert run(one_sm(*pair), both).cycles == pytest.approx(500 + PRODUCT)
    assert run(one_sm(*pair), next_ones).cycles == pytest.approx(500 + 2 * PRODUCT)  # only the first waits


def test_does_a_kernel_pay_its_overhead_once() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    assert run(one_sm("sm.kernel_overhead=3000"), toy(lambda a: [program(a)])).cycles == pytest.approx(3000 + PRODUCT)


def test_are_agents_that_wait_for_each_other_refused() -> None:
    first, second = Barrier("first"), Barrier("second")

    def agent(mine: Barrier, other: Barrier) -> Program:
        yield Await(other)
        yield Arrive(mine)

    with pytest.raises(Deadlock):
        run(one_sm(), toy(lambda a: [agent(first, second), agent(second, first)]))


@pytest.mark.parametrize("stuck", (1, 2, 3))
def test_are_ctas_that_wait_in_vain_reported_with_their_number(stuck: int) -> None:
    """The first work item finds the barrier open, as it does when compiled alone; the second of a CTA never does."""
    gate = Barrier("gate", open_phases=1)

    def program(a: Matrix) -> Program:
        yield Await(gate)
        yield matmul()

    plan = toy(lambda a: [program(a)], ctas=3)
    counts = [2] * stuck + [1] * (3 - stuck)

    def work(index: int) -> list[WorkItem]:
        return [WorkItem((plan.tensors[0].view(0, 0).window(0, 64),), ())] * counts[index]

    launch = replace(plan.launches[0], work=work)
    with pytest.raises(Deadlock, match=rf"kernel toy: {stuck} CTAs wait at barriers that nobody completes"):
        run(one_sm(), replace(plan, launches=(launch,)))


@pytest.mark.parametrize("stuck_agent", (0, 1))
def test_is_a_persistent_cta_that_waits_in_vain_reported(stuck_agent: int) -> None:
    """One of its agents goes on to ask for work until there is none, and ends; the CTA does not."""
    gate = Barrier("gate", open_phases=2)

    def waits() -> Program:
        yield Await(gate)
        yield matmul()

    def works() -> Program:
        yield vector(10)

    def agents(a: Matrix) -> list[Program]:
        return [waits(), works()] if stuck_agent == 0 else [works(), waits()]

    with pytest.raises(Deadlock, match="kernel toy: 1 CTAs"):
        run(one_sm(), toy(agents, queue=3))


def test_is_waiting_for_another_agents_load_refused() -> None:
    shared: dict[str, Any] = {}

    def loader(a: Matrix) -> Program:
        shared["tile"] = yield Load(a.tile(0, 8))

    def waiter() -> Program:
        yield matmul()  # the loader comes first
        yield Wait(shared["tile"])

    with pytest.raises(ValueError, match="use a barrier"):
        run(one_sm(), toy(lambda a: [loader(a), waiter()]))


def test_are_more_copies_in_flight_than_tokens_refused() -> None:
    def program(a: Matrix) -> Program:
        tiles = []
        for i in range(70):
            tiles.append((yield Load(a.tile(i, 1))))
        yield Wait(tiles[0])

    with pytest.raises(UserError, match="fewer stages"):
        run(one_sm(), toy(lambda a: [program(a)]))


def test_are_more_barriers_than_a_cta_has_refused() -> None:
    def program(a: Matrix) -> Program:
        for i in range(70):
            yield Arrive(Barrier(f"b{i}"))

    with pytest.raises(UserError, match="barriers"):
        run(one_sm(), toy(lambda a: [program(a)]))


def test_does_an_empty_tile_cost_nothing() -> None:
    def program(a: Matrix) -> Program:
        tile = yield Load(a.tile(a.rows, 16))
        yield Wait(tile)
        yield Store(a.tile(a.rows, 16), None)
        yield matmul()

    kernel = run(one_sm(), toy(lambda a: [program(a)]))
    assert kernel.cycles == pytest.approx(PRODUCT)
    assert kernel.sm_read_bytes == kernel.sm_write_bytes == 0


def test_does_a_barrier_that_a_later_work_item_names_first_start_open() -> None:
    """A persistent CTA whose first item needs fewer barriers than its second: a FlashAttention-3 block without keys."""

    def agents(a: Matrix) -> list[Program]:
        empty, full = Barrier("empty", open_phases=1), Barrier("full")

        def producer() -> Program:
            if a.rows < 2048:
                yield Await(empty)
                yield Arrive(full)

        def consumer() -> Program:
            if a.rows < 2048:
                yield Await(full)
            yield matmul()

        return [producer(), consumer()]

    kernel = run(one_sm(), toy(agents, queue=2, rows=(2048, 1024)))
    assert kernel.flops == 2 * 2 * 128 * 128 * 64
    assert kernel.cycles == pytest.approx(2 * PRODUCT + BARRIER_CYCLES)


def test_may_later_ctas_have_more_work_items_than_the_first() -> None:
    def program(a: Matrix) -> Program:
        for _ in range(3):
            tile = yield Load(a.tile(0, 64))
            yield Wait(tile)

    plan = toy(lambda a: [program(a)], ctas=3)
    base = plan.launches[0]
    counts = (2, 25, 40)

    def work(index: int) -> list[WorkItem]:
        return [WorkItem((plan.tensors[0].view(0, 0).window(64 * n, 64),), ()) for n in range(counts[index])]

    launch = replace(base, work=work)
    kernel = run(one_sm("l2.size=inf"), replace(plan, launches=(launch,)))
    assert kernel.sm_read_bytes == sum(counts) * 3 * 64 * ROW_BYTES
    assert kernel.dram_read_bytes == 40 * 64 * ROW_BYTES  # the very rows of the longest CTA, which include the others'


@pytest.mark.parametrize("ahead", (3, 30))
def test_may_one_agent_run_many_work_items_ahead_of_another(ahead: int) -> None:
    """A producer that needs no buffer back is at its last item when the consumer is at its first."""
    free = Barrier("free", open_phases=ahead)

    def agents(a: Matrix) -> list[Program]:
        def producer() -> Program:
            yield Await(free)

        def consumer() -> Program:
            yield matmul()
            tile = yield Load(a.tile(0, 64))
            yield Wait(tile)
            yield Arrive(free)

        return [producer(), consumer()]

    plan = toy(agents, queue=0)

    def work(index: int) -> list[WorkItem]:
        return [WorkItem((plan.tensors[0].view(0, 0).window(64 * index, 64),), ())]

    launch = replace(plan.launches[0], work=work, queue=40)
    kernel = run(one_sm("l2.size=inf"), replace(plan, launches=(launch,)))
    assert kernel.sm_read_bytes == kernel.dram_read_bytes == 40 * 64 * ROW_BYTES
