"""Do the pipes of an SM take the times that one works out by hand?

A product's result is there `DEPTH` cycles after the tensor cores are free again; a vector step's `SYNC_CYCLES`, and a
jitter of a few more, after the pipes are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpusim.machine import simulate
from gpusim.sm.core import COPY_WAIT
from gpusim.sm.pipes import ISSUE_CYCLES, JITTER_CYCLES
from gpusim.sm.program import (
    COPY_BYTES_PER_CLK,
    DEPENDENT_CYCLES,
    ELEMENTWISE_CYCLES,
    FRAGMENT_BYTES_PER_CLK,
    LANDING_BYTES_PER_CLK,
    MATMUL_LATENCY_CYCLES,
    MMA_DEPTH,
)
from tests.gpusim.sm.toys import (
    DEPTH,
    MATMUL,
    PRODUCT,
    ROW_BYTES,
    matmul,
    near,
    one_sm,
    run,
    toy,
    toy_of_two,
    vector,
)
from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Matmul, Program, Reduce, Store, Vector, Wait, find_place
from traces.problem import AttentionProblem
from traces.tensor import Matrix, TensorTable

OPERANDS = (4 * 128 * 64 + 128 * 64) * 2
"""Bytes that four warps fetch for a product with mma.sync: each all of B, and together A once."""
FETCH = OPERANDS / 128
FRAGMENTS = OPERANDS / FRAGMENT_BYTES_PER_CLK
"""Cycles that its warps wait for them to be in registers, while others multiply."""
SLOW_MATMUL, FAST_MATMUL = 2 * 128 * 128 * 64 / 2048, 2 * 128 * 128 * 64 / 4096
"""Cycles of mma.sync on tensor cores at half their peak, and at all of it."""


def test_does_a_matrix_product_take_its_flops_at_the_instructions_peak() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    kernel = run(one_sm(), toy(lambda a: [program(a)]))
    assert kernel.cycles == pytest.approx(PRODUCT)
    assert kernel.flops == 2 * 128 * 128 * 64 and kernel.tensor_busy_cycles == pytest.approx(MATMUL)
    slow = run(one_sm("sm.mma_sync_efficiency=0.5"), toy(lambda a: [program(a)], instruction="mma_sync"))
    assert slow.cycles == pytest.approx(SLOW_MATMUL + FRAGMENTS + MATMUL_LATENCY_CYCLES["mma_sync"])
    assert slow.tensor_busy_cycles == pytest.approx(SLOW_MATMUL)


def test_are_operands_of_mma_sync_fetched_under_the_products() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    kernel = run(one_sm("sm.mma_sync_efficiency=0.5"), toy(lambda a: [program(a)], ctas=3, instruction="mma_sync"))
    assert kernel.cycles == pytest.approx(3 * SLOW_MATMUL + FRAGMENTS + MATMUL_LATENCY_CYCLES["mma_sync"])
    narrow = one_sm("sm.mma_sync_efficiency=0.5", "sm.shared_bandwidth=32B/clk")
    kernel = run(narrow, toy(lambda a: [program(a)], ctas=3, instruction="mma_sync"))
    # At four times FETCH for each product, the tensor cores wait for operands.
    assert kernel.cycles == pytest.approx(3 * 4 * FETCH + MATMUL_LATENCY_CYCLES["mma_sync"])


@pytest.mark.parametrize("instruction", ("mma_sync", "wgmma"))
def test_do_warps_that_copy_go_on_when_the_copy_is_taken(instruction: str) -> None:
    def program(a: Matrix) -> Program:
        yield Load(a.tile(0, 512))
        yield vector(3000)

    def cycles(ctas: int) -> float:
        return run(one_sm(), toy(lambda a: [program(a)], ctas=ctas, instruction=instruction)).cycles

    copy = COPY_WAIT * 512 * ROW_BYTES / COPY_BYTES_PER_CLK if instruction == "mma_sync" else ISSUE_CYCLES
    assert cycles(1) == near(copy + 3000)
    assert cycles(2) == near(copy + 6000)  # the second CTA's copy is taken while the first works


def test_do_copies_of_two_ctas_take_turns_at_the_load_store_unit() -> None:
    def program(a: Matrix) -> Program:
        yield Load(a.tile(0, 512))
        yield Vector(lambda: None, (), chain=100)

    kernel = run(one_sm(), toy(lambda a: [program(a)], ctas=2, instruction="mma_sync"))
    waits = DEPENDENT_CYCLES * 100
    copies = (1 + COPY_WAIT) * 512 * ROW_BYTES / COPY_BYTES_PER_CLK
    assert kernel.cycles == pytest.approx(copies + waits, abs=JITTER_CYCLES / 2)


def test_do_instructions_that_wait_for_one_another_hold_up_nobody_else() -> None:
    def program(a: Matrix) -> Program:
        yield Vector(lambda: None, (), chain=1000)

    for ctas in (1, 4):
        cycles = run(one_sm(), toy(lambda a: [program(a)], ctas=ctas)).cycles
        assert cycles == pytest.approx(1000 * DEPENDENT_CYCLES, abs=JITTER_CYCLES / 2)


@pytest.mark.parametrize("parts", (1, 4))
def test_do_later_parts_of_row_work_run_under_the_product(parts: int) -> None:
    def program(a: Matrix) -> Program:
        yield Vector(lambda: None, (), exps=16 * 400, parts=parts)
        yield matmul()

    assert run(one_sm(), toy(lambda a: [program(a)])).cycles == near(400 / parts + PRODUCT)


def test_does_a_product_end_no_earlier_than_the_row_work_under_it() -> None:
    def program(a: Matrix) -> Program:
        yield Vector(lambda: None, (), exps=16 * 4000, parts=4)
        yield matmul()

    assert run(one_sm(), toy(lambda a: [program(a)])).cycles == pytest.approx(4000 + DEPTH)


@pytest.mark.parametrize("rows", (0, 128, 1024))
def test_does_a_tile_that_lands_hold_back_what_is_fetched_from_shared_memory(rows: int) -> None:
    def program(a: Matrix) -> Program:
        yield Load(a.tile(0, rows))
        yield matmul()

    landing = rows * ROW_BYTES / LANDING_BYTES_PER_CLK
    copy = max(ISSUE_CYCLES, COPY_WAIT * rows * ROW_BYTES / COPY_BYTES_PER_CLK) if rows else 0.0
    fast = one_sm("sm.mma_sync_efficiency=1")
    mma = run(fast, toy(lambda a: [program(a)], instruction="mma_sync"))
    after = max(copy + FAST_MATMUL + FRAGMENTS, max(copy, landing) + FETCH)
    assert mma.cycles == pytest.approx(after + MATMUL_LATENCY_CYCLES["mma_sync"])
    landing = rows * ROW_BYTES / 128
    alone = run(fast, toy(lambda a: [program(a)], instruction="mma_sync", in_step=False))
    after = max(copy + FAST_MATMUL + FRAGMENTS, max(copy, landing) + FETCH)
    assert alone.cycles == pytest.approx(after + MATMUL_LATENCY_CYCLES["mma_sync"])
    streamed = (2 * 128 * 64 + 128 * 64) * 2 / 128  # wgmma: two instructions of 64 rows fetch B, and A once
    issue = ISSUE_CYCLES if rows else 0.0
    wgmma = run(one_sm(), toy(lambda a: [program(a)]))
    assert wgmma.cycles == pytest.approx(max(issue + MATMUL, max(issue, landing) + streamed) + DEPTH)


@pytest.mark.parametrize("instruction", ("mma_sync", "wgmma"))
@pytest.mark.parametrize("stored", (256, 4096))
def test_do_loads_of_warps_take_turns_with_the_stores_of_others(stored: int, instruction: str) -> None:
    """The second CTA loads 128 KiB from a warm L2 while the first stores less, or more than that."""
    loaded, gpu = 1024, one_sm("l2.slice_bandwidth=4096B/clk")  # where they would meet again

    def first(a: Matrix) -> Program:
        yield Store(a.tile(0, stored), np.zeros((stored, a.cols), np.float32))

    def second(a: Matrix) -> Program:
        yield Vector(lambda: None, (), chain=10)  # so that it comes later
        yield Wait((yield Load(a.tile(0, loaded))))

    def taken(program: Callable[[Matrix], Program]) -> float:
        plan = toy_of_two(program, second, instruction)
        kernel = simulate(plan, gpu, l2="warm", check=True, record_ctas=True).kernels[0]
        assert kernel.cta_times is not None
        return float(kernel.cta_times.duration_cycles[1])

    def idle(a: Matrix) -> Program:
        yield Vector(lambda: None, (), chain=1)

    waits = min(stored, loaded) * ROW_BYTES / gpu.sm.write_port_bytes_per_clk if instruction == "mma_sync" else 0.0
    assert taken(first) - taken(idle) == pytest.approx(waits, abs=100), "what TMA copies has a way of its own"


def test_do_stores_of_warps_hold_up_what_others_fetch() -> None:
    stored = 1024

    def first(a: Matrix) -> Program:
        yield Store(a.tile(0, stored), np.zeros((stored, a.cols), np.float32))

    def second(a: Matrix) -> Program:
        yield Vector(lambda: None, (), chain=10)
        yield matmul()

    kernel = run(one_sm("sm.mma_sync_efficiency=1"), toy_of_two(first, second, "mma_sync"))
    sending = stored * ROW_BYTES / one_sm().sm.write_port_bytes_per_clk
    assert kernel.cycles == pytest.approx(sending + FETCH + MATMUL_LATENCY_CYCLES["mma_sync"], rel=0.01)


@pytest.mark.parametrize("ctas", (1, 3))
def test_does_row_work_through_shared_memory_take_turns_at_it(ctas: int) -> None:
    def program(a: Matrix) -> Program:
        yield Vector(lambda: None, (), instructions=128, shared_bytes=128 * 2000, elementwise=True)

    kernel = run(one_sm(), toy(lambda a: [program(a)], ctas=ctas))
    assert kernel.cycles == pytest.approx(ctas * 2000, abs=2 * ELEMENTWISE_CYCLES)


def test_is_a_matrix_product_no_faster_than_its_operands_leave_shared_memory() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    # wgmma: both 64-row instructions fetch B (128 x 64 fp16), and A is fetched once.
    operands = 2 * 128 * 64 * 2 + 128 * 64 * 2
    kernel = run(one_sm("sm.shared_bandwidth=32B/clk"), toy(lambda a: [program(a)]))
    assert kernel.cycles == pytest.approx(operands / 32 + DEPTH)
    assert kernel.shared_read_bytes == operands


def test_do_two_ctas_take_turns_on_the_tensor_cores() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()
        yield matmul()

    assert run(one_sm(), toy(lambda a: [program(a)], ctas=2)).cycles == pytest.approx(4 * MATMUL + DEPTH)


@pytest.mark.parametrize("instruction", ("mma_sync", "wgmma"))
def test_are_products_by_warps_of_the_oldest_cta_preferred(instruction: str) -> None:
    def program(a: Matrix) -> Program:
        for _ in range(40):
            product = yield matmul(asynchronous=instruction == "wgmma")
            yield vector(100)
            yield Wait(product)

    plan = toy(lambda a: [program(a)], ctas=3, instruction=instruction)
    kernel = simulate(plan, one_sm("sm.mma_sync_efficiency=0.5"), check=True, record_ctas=True).kernels[0]
    assert kernel.cta_times is not None
    first, *others = kernel.cta_times.duration_cycles
    assert kernel.tensor_busy_cycles <= kernel.cycles + 1e-6
    if instruction == "mma_sync":
        assert first < 0.9 * min(others)
    else:
        assert first == pytest.approx(np.mean(others), rel=0.1)


def test_do_two_ctas_take_turns_on_the_vector_pipes() -> None:
    def program(a: Matrix) -> Program:
        yield vector(1000)

    assert run(one_sm(), toy(lambda a: [program(a)])).cycles == near(1000)
    assert run(one_sm(), toy(lambda a: [program(a)], ctas=2)).cycles == near(2000)


@pytest.mark.parametrize("instruction", ("mma_sync", "wgmma"))
def test_does_fp32_work_hold_up_products_that_are_issued_like_it(instruction: str) -> None:
    def work(a: Matrix) -> Program:
        yield vector(1000)

    def multiply(a: Matrix) -> Program:
        yield matmul()

    gpu = one_sm("sm.mma_sync_efficiency=1", "sm.wgmma_efficiency=1")
    cycles = run(gpu, toy(lambda a: [work(a), multiply(a)], instruction=instruction)).cycles
    alone = run(gpu, toy(lambda a: [multiply(a)], instruction=instruction)).cycles
    assert cycles == (near(max(1000, alone)) if instruction == "wgmma" else pytest.approx(1000 + alone))


@pytest.mark.parametrize(("warps", "columns"), ((8, 1), (8, 2), (8, 4), (4, 4)))
def test_do_warps_read_a_of_their_rows_and_b_of_their_columns(warps: int, columns: int) -> None:
    def program(a: Matrix) -> Program:
        yield matmul()

    plan = toy(lambda a: [program(a)], instruction="mma_sync")
    shared = tuple(replace(launch, warps=warps, warp_columns=columns) for launch in plan.launches)
    m, n, k = matmul().shape
    read = run(one_sm(), replace(plan, launches=shared)).shared_read_bytes
    assert read == 2 * k * (columns * m + warps // columns * n)


@pytest.mark.parametrize("ctas", (1, 2, 3, 8))
def test_are_vector_pipes_never_faster_than_their_peak(ctas: int) -> None:
    def program(a: Matrix) -> Program:
        for _ in range(10):
            yield vector(1000)

    result = simulate(toy(lambda a: [program(a)], ctas=ctas), one_sm())
    busy = result.timeline.activity["vector_busy"]
    assert busy.sum() == pytest.approx(ctas * 10_000) and result.cycles >= ctas * 10_000
    assert np.all(busy <= result.timeline.bin_cycles * (1 + 1e-9))
    assert (len(busy) - 1) * result.timeline.bin_cycles <= result.cycles


def test_do_exponentials_and_arithmetic_of_a_step_take_their_units_one_after_the_other() -> None:
    def program(exps: int, instructions: int) -> Program:
        yield Vector(lambda: None, (), exps=exps, instructions=instructions)

    assert run(one_sm(), toy(lambda a: [program(16_000, 0)])).cycles == near(1000)  # 16 per cycle
    assert run(one_sm(), toy(lambda a: [program(16_000, 240_000)])).cycles == near(2875)  # 128 per cycle


def test_do_dependent_steps_add_up() -> None:
    def program(a: Matrix) -> Program:
        yield matmul()
        yield vector(500)
        yield matmul()

    assert run(one_sm(), toy(lambda a: [program(a)])).cycles == near(2 * PRODUCT + 500)


@pytest.mark.parametrize("cycles", (100, 2000))
def test_does_an_asynchronous_product_run_under_vector_work(cycles: int) -> None:
    def program(a: Matrix) -> Program:
        product = yield matmul(asynchronous=True)
        yield vector(cycles)
        yield Wait(product)

    found = run(one_sm(), toy(lambda a: [program(a)])).cycles
    assert found == (pytest.approx(PRODUCT) if cycles == 100 else near(ISSUE_CYCLES + cycles))


def test_do_products_of_one_cta_run_under_the_softmax_of_another() -> None:
    def program(a: Matrix) -> Program:
        for _ in range(4):
            yield matmul()
            yield vector(round(MATMUL))

    alone = run(one_sm(), toy(lambda a: [program(a)])).cycles
    both = run(one_sm(), toy(lambda a: [program(a)], ctas=2)).cycles
    assert both < alone + 2 * PRODUCT


@pytest.mark.parametrize("depth", (64, 128, 576, 4096))
def test_does_a_narrow_product_of_mma_sync_wait_for_its_own_accumulators(depth: int) -> None:
    """16 rows and 8 columns are one accumulator: each instruction of 16 adds to what the one before has left."""

    def program(a: Matrix) -> Program:
        yield Matmul(None, None, (16, 8, depth))

    latency = MATMUL_LATENCY_CYCLES["mma_sync"]
    kernel = run(one_sm("sm.shared_bandwidth=1e6B/clk"), toy(lambda a: [program(a)], instruction="mma_sync"))
    assert kernel.cycles == pytest.approx(depth / MMA_DEPTH * latency)
    assert kernel.tensor_busy_cycles < kernel.cycles / 2


def test_is_elementwise_work_done_sooner_than_work_across_lanes() -> None:
    def program(elementwise: bool) -> Program:
        yield Vector(lambda: None, (), instructions=128 * 500, elementwise=elementwise)

    alone, across = (run(one_sm(), toy(lambda a, e=e: [program(e)])).cycles for e in (True, False))
    assert alone == pytest.approx(500 + ELEMENTWISE_CYCLES, abs=ELEMENTWISE_CYCLES)
    assert across == near(500)


@pytest.mark.parametrize("threads", (0, 256))
def test_does_finding_a_place_take_its_chain_or_the_issue_slots(threads: int) -> None:
    def program(a: Matrix) -> Program:
        yield find_place(160, threads)

    one, eight = (run(one_sm(), toy(lambda a: [program(a)], ctas=n)).cycles for n in (1, 8))
    assert one == pytest.approx(160 * DEPENDENT_CYCLES, abs=JITTER_CYCLES)
    issued = 160 * threads / 128
    assert eight == pytest.approx(one + 7 * issued, abs=JITTER_CYCLES)


@pytest.mark.parametrize("copies", ("tma", "cp_async"))
def test_does_a_program_go_on_behind_a_bulk_store_until_its_next_one(copies: str) -> None:
    gpu = one_sm()
    sent = 512 * ROW_BYTES / gpu.sm.write_port_bytes_per_clk

    def program(a: Matrix) -> Program:
        for number in range(3):
            yield Store(a.tile(512 * number, 512), None)
            yield matmul()

    plan = toy(lambda a: [program(a)])
    launch = replace(plan.launches[0], copies=copies)
    cycles = run(gpu, replace(plan, launches=(launch,))).cycles
    assert sent > PRODUCT
    assert cycles == pytest.approx(3 * sent if copies == "tma" else 3 * (sent + PRODUCT), abs=5 * ISSUE_CYCLES)


@pytest.mark.parametrize("by_fragments", (False, True))
def test_do_additions_leave_an_sm_at_their_ports_rate(by_fragments: bool) -> None:
    gpu = one_sm("l2.reduce_bandwidth=1e6B/clk", "l2.fragment_bandwidth=1e6B/clk")
    table = TensorTable()
    sums = table.add("sums", (1, 1, 512, 64), DTYPES["fp32"])

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        def program() -> Program:
            yield Reduce(matrices[0].tile(0, 512), None, by_fragments)

        return (program(),)

    launch = KernelLaunch("add", 1, CtaResources(256, 32, 0), lambda _: [WorkItem((sums.view(0, 0),), ())], agents)
    kernel = run(gpu, Plan("add", AttentionProblem(), None, table.tensors, (launch,), ("sums",), ()))
    port = gpu.sm.fragment_port_bytes_per_clk if by_fragments else gpu.sm.reduce_port_bytes_per_clk
    assert kernel.cycles == pytest.approx(512 * 256 / port, rel=0.02)
