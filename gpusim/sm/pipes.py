"""The pipes of an SM: matrix products on the tensor cores, row work on the vector pipes, shared memory under both.

CTAs that share an SM take turns at each of them; of products by warps, the oldest CTA's go first.
"""

from __future__ import annotations

from typing import Any

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.timeline import TENSOR_BUSY, VECTOR_BUSY, record_activity
from gpusim.sm.opcodes import (
    A_SECTORS,
    A_SLOT,
    B_SECTORS,
    B_SLOT,
    FLOPS,
    FRAGMENT_CYCLES,
    LATENCY_CYCLES,
    LATER_PART,
    SHARED_CYCLES,
    SHARED_READ,
    SHARED_WRITE,
    TENSOR_CYCLES,
    TOKEN,
    VECTOR_CYCLES,
)

SHARED_READ_COUNTER = int(C.SHARED_READ)
ISSUE_CYCLES = 4.0
"""Cycles an agent spends on issuing an asynchronous operation."""
JITTER_CYCLES = 96.0
"""Spread of the latency of row work about its mean, from warp scheduling. It lets CTAs that start together drift apart,
and so decides how many of their reads merge; fitted to the L2 reads of our own kernels that are not held out."""
OLDEST_FIRST = 0.75
"""How often the oldest CTA of an SM has its products by warps multiplied before others that wait: schedulers prefer the
oldest warps. So CTAs that share an SM drift apart, by a quarter of their time (`APART`: and alike on all SMs)."""
APART = 0.3
"""How much of that choice is an SM's own. Both were fitted to two CTAs on each SM of an H200 that do FlashAttention-2
(experiments/measured/h200/ctas/flash2_16h_4096.csv): the older ends 81,000 cycles of 321,000 before the other, and on
all SMs so much alike that L2 reads of our own kernels, not held out, are as many as on the card."""


@njit
def _jitter(row: int, pc: int, item: int) -> float:
    """A number in [0, 1) that looks random and is the same in every run."""
    x = (row * 2654435761 + pc * 40503 + item * 97531) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    return x / 4294967296.0


@njit
def _is_oldest(s: Any, sm: int, row: int) -> bool:
    """Whether the SM has other CTAs, and all of them came later."""
    own, others = row // s.agents, 0
    for slot in range(sm * s.ctas_per_sm, (sm + 1) * s.ctas_per_sm):
        if slot != own and s.live_agents[slot]:
            others += 1
            if (s.started[slot], slot) < (s.started[own], own):  # those that began together: the lower slot
                return False
    return others > 0


@njit
def _is_preferred(s: Any, sm: int, row: int) -> bool:
    """Whether the agent's product goes before those of other CTAs."""
    if not _is_oldest(s, sm, row):
        return False
    alike = _jitter(row - sm * s.ctas_per_sm * s.agents, s.row[row], s.item[row])
    own = _jitter(row, s.row[row], s.item[row])
    return alike + APART * (own - 0.5) < OLDEST_FIRST


@njit
def multiply(s: Any, m: Any, sm: int, program: int, row: int, kind: int, t: float) -> None:
    """A matrix product: operands through the shared-memory pipe, meanwhile the tensor cores. Row work under it ends."""
    op = s.ops[kind]
    cycles, fetching = s.costs[kind, TENSOR_CYCLES], s.costs[kind, SHARED_CYCLES]
    start, fetch = max(t, s.tensor_free[sm]), max(t, s.shared_free[sm])
    # An asynchronous product (wgmma) is a warpgroup's, and not preferred.
    if max(start, fetch) > t and op[TOKEN] < 0 and _is_preferred(s, sm, row):
        start = fetch = t
    fetched = fetch + fetching
    s.shared_free[sm] = max(fetched, s.shared_free[sm] + fetching)  # those that were passed over wait for longer
    end = max(start + cycles, fetched, s.vector_done[row])
    free = s.tensor_free[sm] = max(end, s.tensor_free[sm] + cycles)
    done = max(end, start + cycles + s.costs[kind, FRAGMENT_CYCLES]) + s.costs[kind, LATENCY_CYCLES]
    s.busy[0] += cycles
    record_activity(m, TENSOR_BUSY, free - cycles, free)
    s.totals[0] += op[FLOPS]
    s.totals[1] += op[SHARED_READ]
    m.counters[s.tensors[program, op[A_SLOT]], SHARED_READ_COUNTER] += op[A_SECTORS]
    m.counters[s.tensors[program, op[B_SLOT]], SHARED_READ_COUNTER] += op[B_SECTORS]
    if op[TOKEN] >= 0:
        s.tokens[row, op[TOKEN]] = done
        s.time[row] = t + ISSUE_CYCLES
    else:
        s.time[row] = done


@njit
def row_work(s: Any, m: Any, sm: int, row: int, pc: int, kind: int, t: float) -> None:
    """Work on the vector pipes, which the SM's agents share."""
    op = s.ops[kind]
    start = max(t, s.vector_free[sm])
    cycles = s.costs[kind, VECTOR_CYCLES]
    s.vector_free[sm] = start + cycles
    if s.costs[kind, TENSOR_CYCLES]:  # mma.sync reads registers and is issued as any instruction: they take turns
        s.tensor_free[sm] = max(s.tensor_free[sm], start) + s.costs[kind, TENSOR_CYCLES]
    # Warps take turns: work waits for what is queued, at most one turn of its own length per other agent.
    sharing = 1
    first = sm * s.ctas_per_sm * s.agents
    for other in range(first, first + s.ctas_per_sm * s.agents):
        if other != row and s.vector_done[other] > t:
            sharing += 1
    done = min(start + cycles, t + sharing * cycles)
    if s.costs[kind, SHARED_CYCLES]:
        s.shared_free[sm] = max(t, s.shared_free[sm]) + s.costs[kind, SHARED_CYCLES]
        done = max(done, s.shared_free[sm])
    s.vector_done[row] = done
    s.busy[1] += cycles
    record_activity(m, VECTOR_BUSY, start, start + cycles)
    s.totals[1] += op[SHARED_READ]
    s.totals[2] += op[SHARED_WRITE]
    latency = s.costs[kind, LATENCY_CYCLES]
    latency += min(JITTER_CYCLES, 2 * latency) * (_jitter(row, pc, s.item[row]) - 0.5)
    s.time[row] = start + (1 - s.costs[kind, LATER_PART]) * (done - start) + latency
