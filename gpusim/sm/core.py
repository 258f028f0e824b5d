"""One SM's turn: run its agents' operations that are due, and say when the next one is.

SimPy orders the turns of the SMs; within a turn this compiled function interprets the operation tables. An operation is
executed when its agent's time has come, so the tensor cores, the vector pipes and the memory system see requests in
time order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.jit import njit
from gpusim.memory.access import read_tile, write_tile
from gpusim.memory.timeline import MEMORY_WAIT, record_activity
from gpusim.memory.uplink import still_sending
from gpusim.sm.opcodes import (
    ARRIVE,
    AWAIT,
    BASE,
    BY_WARPS,
    CODE,
    COPY_CYCLES,
    FLAGS,
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
    SHARES,
    SLOT,
    STORE,
    TOKEN,
    VECTOR,
    WAIT,
)
from gpusim.sm.pipes import ISSUE_CYCLES, multiply, row_work

BARRIER_CYCLES = 40.0
"""Cycles to see that an mbarrier's phase is complete (try_wait and its shared-memory access); estimate."""
LOOKAHEAD_CYCLES = 8.0
"""How far past `now` a turn goes on: SMs may act out of order by no more than this, and have half as many turns."""
COPY_WAIT = 0.5
"""Share of the time to take a cp.async copy that its warps wait: one after another gets through, and goes on. Fitted to
products of one CTA on an SM, of our own kernels that are not held out."""
POSTED, BULK, QUEUED = 1, 2, 3
"""What an agent may be sending: warps' stores, which it waits for, or a bulk copy (TMA) out of shared memory, which its
next one and its end wait for. QUEUED: nothing, but its load takes turns with what other warps send: it waits until as
much of that has left, or all. (Stamps of gemm.cu on an H200: the operands of a CTA take 1970 cycles to arrive, 2880
when the other CTA of the SM stores.)"""


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
def _transfer(s: Any, m: Any, sm: int, item: Any, row: int, offset: int, kind: int, t: float) -> None:
    """Load, store or add a tile of a work item (a row of the item table), `offset` bytes into its view."""
    op = s.ops[kind]
    tensor, page_bytes = s.tensors[item[0], op[SLOT]], op[PAGE_BYTES]
    if page_bytes:
        done = _access(m, sm, op, tensor, offset, t, item[op[BASE] :], page_bytes)
    else:
        done = _access(m, sm, op, tensor, item[op[BASE]] + offset, t, None, 0)
    if op[CODE] == LOAD:
        s.tokens[row, op[TOKEN]] = done
        s.shared_free[sm] = max(t, s.shared_free[sm]) + s.costs[kind, SHARED_CYCLES]  # the tile's landing
        s.copy_free[sm] = max(t, s.copy_free[sm]) + s.costs[kind, COPY_CYCLES]
        s.time[row] = max(t + ISSUE_CYCLES, s.copy_free[sm] - (1 - COPY_WAIT) * s.costs[kind, COPY_CYCLES])
        return
    s.sent[row], s.send_until[row] = done, m.send_total[sm]
    if op[TOKEN]:
        s.sending[row], s.time[row] = BULK, t + ISSUE_CYCLES
    else:
        s.sending[row], s.time[row] = POSTED, done
        s.shared_free[sm] = max(t, s.shared_free[sm]) + (done - t)  # others fetch nothing meanwhile


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
        _transfer(s, m, sm, s.items[slot, item], row, s.offsets[pc], kind, t)
    elif code == WAIT:
        done = s.tokens[row, op[TOKEN]]
        if done > t:
            if op[RUNS]:
                record_activity(m, MEMORY_WAIT, t, done)
            s.time[row] = done
    elif code == MATMUL:
        multiply(s, m, sm, program, row, kind, t)
    elif code == VECTOR:
        row_work(s, m, sm, row, pc, kind, t)
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
