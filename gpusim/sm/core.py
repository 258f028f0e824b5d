"""One SM's turn: run its agents' operations that are due, and say when the next one is.

SimPy orders the turns of the SMs; within a turn this compiled function interprets the operation tables. An operation is
executed when its agent's time has come, so the tensor cores, the vector pipes and the memory system see requests in
time order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.access import read_tile, write_tile
from gpusim.memory.timeline import record_activity
from gpusim.memory.uplink import still_sending
from gpusim.sm.opcodes import (
    A_SECTORS,
    A_SLOT,
    ARRIVE,
    AWAIT,
    B_SECTORS,
    B_SLOT,
    BASE,
    BY_WARPS,
    CODE,
    COPY_CYCLES,
    FLAGS,
    FLOPS,
    FRAGMENT_CYCLES,
    LATENCY_CYCLES,
    LATER_PART,
    LOAD,
    MATMUL,
    NEXT_ITEM,
    PAGE_BYTES,
    PHASES,
    PITCH,
    REDUCE,
    RUN_BYTES,
    RUNS,
    SHARE,
    SHARED_CYCLES,
    SHARED_READ,
    SHARED_WRITE,
    SHARES,
    SLOT,
    STORE,
    TENSOR_CYCLES,
    TOKEN,
    VECTOR,
    VECTOR_CYCLES,
    WAIT,
)

SHARED_READ_COUNTER = int(C.SHARED_READ)
TENSOR_BUSY, VECTOR_BUSY, MEMORY_WAIT = range(3)
JITTER_CYCLES = 96.0
"""Spread of the latency of row work about its mean, from warp scheduling. It lets CTAs that start together drift apart,
and so decides how many of their reads merge; fitted to the L2 reads of our own kernels that are not held out."""
BARRIER_CYCLES = 40.0
"""Cycles to see that an mbarrier's phase is complete (try_wait and its shared-memory access); estimate."""
LOOKAHEAD_CYCLES = 8.0
"""How far past `now` a turn goes on: SMs may act out of order by no more than this, and have half as many turns."""
OLDEST_FIRST = 0.75
"""How often the oldest CTA of an SM has its products by warps multiplied before others that wait: schedulers prefer the
oldest warps. So CTAs that share an SM drift apart, by a quarter of their time (`APART`: and alike on all SMs)."""
APART = 0.3
"""How much of that choice is an SM's own. Both were fitted to two CTAs on each SM of an H200 that do FlashAttention-2
(experiments/measured/h200/ctas/flash2_16h_4096.csv): the older ends 81,000 cycles of 321,000 before the other, and on
all SMs so much alike that L2 reads of our own kernels, not held out, are as many as on the card."""
COPY_WAIT = 0.5
"""Share of the time to take a cp.async copy that its warps wait: one after another gets through, and goes on. Fitted to
products of one CTA on an SM, of our own kernels that are not held out."""
POSTED, BULK, QUEUED = 1, 2, 3
"""What an agent may be sending: warps' stores, which it waits for, or a bulk copy (TMA) out of shared memory, which its
next one and its end wait for. QUEUED: nothing, but its load takes turns with what other warps send: it waits until as
much of that has left, or all. (Stamps of gemm.cu on an H200: the operands of a CTA take 1970 cycles to arrive, 2880
when the other CTA of the SM stores.)"""
ISSUE_CYCLES = 4.0
"""Cycles an agent spends on issuing an asynchronous operation."""


@njit
def _next_agent(s: Any, first: int, last: int) -> int:
    """The agent (row) with the earliest time; the lowest row of equals."""
    best = first
    for row in range(first + 1, last):
        if s.time[row] < s.time[best]:
            best = row
    return best


@njit
def _arrive(s: Any, slot: int, barrier: int, t: float) -> None:
    """Count an arrival at `t`; a completed phase wakes the agents of the CTA that wait for it."""
    if t > s.arriving[slot, barrier]:
        s.arriving[slot, barrier] = t
    s.arrivals[slot, barrier] += 1
    if s.arrivals[slot, barrier] < s.barrier_count[barrier]:
        return
    s.arrivals[slot, barrier] = 0
    s.phase_time[slot, barrier, s.phases[slot, barrier] % PHASES] = s.arriving[slot, barrier]
    s.phases[slot, barrier] += 1
    s.arriving[slot, barrier] = 0.0
    for row in range(slot * s.agents, (slot + 1) * s.agents):
        if s.blocked_on[row] == barrier:
            s.blocked_on[row] = -1
            s.time[row] = max(t, s.blocked_since[row])  # it looks again, and takes the phase's own time


@njit
def _item(s: Any, slot: int, row: int) -> int:
    """Column of the agent's current item in its CTA's ring."""
    return s.item[row] % s.items.shape[1]


@njit
def _finish_item(s: Any, sm: int, slot: int, row: int, t: float) -> None:
    """Move an agent to its CTA's next work item, have one fetched, or retire the agent."""
    s.item[row] += 1
    if s.item[row] < s.item_count[slot]:
        s.row[row] = s.ranges[s.items[slot, _item(s, slot, row), 0], row - slot * s.agents, 0]
        return
    s.time[row] = np.inf
    if s.closed[slot] == 0:
        s.blocked_on[row] = NEXT_ITEM
        if s.hungry[slot] == 0:
            s.hungry[slot] = 1
            s.attention[sm] += 1
        return
    if t > s.end_time[sm]:
        s.end_time[sm] = t
    s.live_agents[slot] -= 1
    if s.live_agents[slot] == 0:
        s.attention[sm] += 1


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
def _multiply(s: Any, m: Any, sm: int, program: int, row: int, kind: int, t: float) -> None:
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
def _row_work(s: Any, m: Any, sm: int, row: int, pc: int, kind: int, t: float) -> None:
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


@njit
def _access(m: Any, sm: int, op: Any, tensor: int, address: int, t: float, pages: Any, page_bytes: int) -> float:
    """Load, store or add a tile; returns its end. `pages` is None, or where the pages of a stacked view start."""
    runs, run_bytes, pitch = op[RUNS], op[RUN_BYTES], op[PITCH]
    if op[CODE] == LOAD:
        return read_tile(
            m, sm, tensor, address, runs, run_bytes, pitch, op[SHARE], op[SHARES], t, op[FLAGS], pages, page_bytes
        )
    adding, by_fragments = op[CODE] == REDUCE, op[FLAGS] != 0
    return write_tile(m, sm, tensor, address, runs, run_bytes, pitch, t, adding, pages, page_bytes, by_fragments)


@njit
def _must_be_sent(s: Any, slot: int, row: int, ended: bool, code: int) -> bool:
    """Whether what an agent is sending holds up its operation `code`, or its end of the item (`ended`)."""
    if s.sending[row] != BULK:
        return bool(s.sending[row] != 0)
    if ended:  # its shared memory is the CTA's until then
        return bool(s.closed[slot] and s.item[row] + 1 >= s.item_count[slot])
    return code in (STORE, REDUCE)


@njit
def _execute(s: Any, m: Any, sm: int, slot: int, row: int) -> None:
    """Execute the agent's next operation and advance its time."""
    t = s.time[row]
    pc = s.row[row]
    item = _item(s, slot, row)
    program = s.items[slot, item, 0]
    ended = pc >= s.ranges[program, row - slot * s.agents, 1]
    kind = s.steps[0 if ended else pc]
    op = s.ops[kind]
    code = op[CODE]
    had_its_turn = False
    if _must_be_sent(s, slot, row, ended, code):
        later = max(still_sending(m, sm, s.send_until[row], t), s.sent[row])
        if later > t:
            s.time[row] = later
            return
        had_its_turn = s.sending[row] == QUEUED
        s.sending[row] = 0
    if ended:
        _finish_item(s, sm, slot, row, t)
        return
    if code == LOAD and op[BY_WARPS] and m.send_left[sm] > 0 and not had_its_turn:
        turn = min(m.send_left[sm], op[RUNS] * op[RUN_BYTES] / 32 * m.write_port_cycles)
        s.sending[row], s.sent[row], s.send_until[row] = QUEUED, t, m.send_total[sm] - m.send_left[sm] + turn
        return
    s.row[row] = pc + 1
    if code in (LOAD, STORE, REDUCE):
        tensor = s.tensors[program, op[SLOT]]
        offset, page_bytes = s.offsets[pc], op[PAGE_BYTES]
        if page_bytes:
            done = _access(m, sm, op, tensor, offset, t, s.items[slot, item, op[BASE] :], page_bytes)
        else:
            done = _access(m, sm, op, tensor, s.items[slot, item, op[BASE]] + offset, t, None, 0)
        if code == LOAD:
            s.tokens[row, op[TOKEN]] = done
            s.shared_free[sm] = max(t, s.shared_free[sm]) + s.costs[kind, SHARED_CYCLES]  # the tile's landing
            s.copy_free[sm] = max(t, s.copy_free[sm]) + s.costs[kind, COPY_CYCLES]
            s.time[row] = max(t + ISSUE_CYCLES, s.copy_free[sm] - (1 - COPY_WAIT) * s.costs[kind, COPY_CYCLES])
        elif op[TOKEN]:
            s.time[row] = t + ISSUE_CYCLES
            s.sending[row], s.sent[row], s.send_until[row] = BULK, done, m.send_total[sm]
        else:
            s.time[row] = done
            s.sending[row], s.sent[row], s.send_until[row] = POSTED, done, m.send_total[sm]
            s.shared_free[sm] = max(t, s.shared_free[sm]) + (done - t)
    elif code == WAIT:
        done = s.tokens[row, op[TOKEN]]
        if done > t:
            if op[RUNS]:
                record_activity(m, MEMORY_WAIT, t, done)
            s.time[row] = done
    elif code == MATMUL:
        _multiply(s, m, sm, program, row, kind, t)
    elif code == VECTOR:
        _row_work(s, m, sm, row, pc, kind, t)
    elif code == ARRIVE:
        when = t
        if op[TOKEN] >= 0:
            when = max(t, s.tokens[row, op[TOKEN]])
        if when >= s.arriving[slot, op[SLOT]]:
            s.loads_phase[slot, op[SLOT]] = op[RUNS]
        _arrive(s, slot, op[SLOT], when)
    elif code == AWAIT:
        barrier = op[SLOT]
        seen = s.seen[row, barrier]
        if s.phases[slot, barrier] > seen:
            s.seen[row, barrier] = seen + 1
            done = max(t, s.phase_time[slot, barrier, seen % PHASES])
            if s.loads_phase[slot, barrier]:
                record_activity(m, MEMORY_WAIT, min(t, s.blocked_since[row]), done)
            s.blocked_since[row] = np.inf
            s.time[row] = done + BARRIER_CYCLES
        else:
            s.row[row] = pc
            s.blocked_on[row] = barrier
            s.blocked_since[row] = t
            s.time[row] = np.inf


@njit
def step(s: Any, m: Any, sm: int, now: float) -> float:
    """Run everything of SM `sm` that is due at `now`; returns the time of its next operation (inf: none).

    CTAs that ended (no live agents) or want another item (hungry) are counted in `s.attention[sm]`.
    """
    first = sm * s.ctas_per_sm * s.agents
    last = first + s.ctas_per_sm * s.agents
    while True:
        row = _next_agent(s, first, last)
        if s.time[row] > now + LOOKAHEAD_CYCLES:
            return s.time[row]
        _execute(s, m, sm, row // s.agents, row)
