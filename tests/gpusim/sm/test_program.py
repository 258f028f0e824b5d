"""Is a program compiled once per shape, and replayed at each item's own address?"""

from __future__ import annotations

import numpy as np

from gpusim.sm import opcodes as oc
from gpusim.sm.program import ProgramTable
from gpusim.spec import load_gpu
from traces.algorithms import ALGORITHMS
from traces.problem import AttentionProblem


def test_do_equal_shapes_share_a_program_and_ragged_ones_have_their_own() -> None:
    problem = AttentionProblem(heads=4, seq=300, dim=64)
    plan = ALGORITHMS["flash2"].plan(problem, ALGORITHMS["flash2"].default_schedule(problem, "mma_sync", 132))
    (launch,) = plan.launches
    table = ProgramTable(load_gpu("h200"))
    used = {table.program_of(launch, item) for cta in range(launch.ctas) for item in launch.work(cta)}
    assert len(used) == 2 == len(table.ranges)  # 128 rows, and the last block's 44


def test_does_the_table_hold_the_operations_in_order() -> None:
    problem = AttentionProblem(heads=1, seq=128, dim=64)
    plan = ALGORITHMS["flash2"].plan(problem, ALGORITHMS["flash2"].default_schedule(problem, "mma_sync", 132))
    table = ProgramTable(load_gpu("h200"))
    program = table.program_of(plan.launches[0], plan.launches[0].work(0)[0])
    ((first, last),) = table.ranges[program]
    ops = table.ops[table.steps[first:last]]
    codes = ops[:, oc.CODE].tolist()
    # Find the place; Q and K; wait for both; V under S = QK; softmax; wait for V; O += PV; normalise; store O and LSE.
    load, wait, mm, vec, store = oc.LOAD, oc.WAIT, oc.MATMUL, oc.VECTOR, oc.STORE
    assert codes == [vec, load, load, wait, wait, load, mm, vec, wait, mm, vec, store, store]
    loads = ops[np.array(codes) == load]
    assert loads[:, oc.SLOT].tolist() == [0, 1, 2]
    assert np.all(loads[:, oc.RUNS] * loads[:, oc.RUN_BYTES] == 128 * 64 * 2)
    assert len(set(loads[:, oc.TOKEN].tolist())) == 3


def test_does_a_table_grow_without_losing_what_it_held() -> None:
    problem = AttentionProblem(heads=1, seq=16_384, dim=64, causal=True)
    plan = ALGORITHMS["flash2"].plan(problem, ALGORITHMS["flash2"].default_schedule(problem, "mma_sync", 132))
    launch, table = plan.launches[0], ProgramTable(load_gpu("h200"))
    first = table.program_of(launch, launch.work(0)[0])
    own = slice(*table.ranges[first][0])
    before = table.ops[table.steps[own]], table.offsets[own].copy()
    for cta in range(1, launch.ctas):
        table.program_of(launch, launch.work(cta)[0])
    assert len(table.steps) > 1024 and table.used == table.ranges[-1][0][1]
    assert table.kinds < 500  # a program repeats a few operations on other tiles
    assert np.array_equal(table.ops[table.steps[own]], before[0]) and np.array_equal(table.offsets[own], before[1])
