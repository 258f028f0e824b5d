"""State of all SMs: resident CTAs, their agents, barriers and tokens, and the pipes' next free cycle.

Items of a CTA lie in a ring: item i is in column i % (columns). A persistent CTA gets its next item when the first of
its agents asks; the others follow.

CTA slot c of SM s is row s * ctas_per_sm + c; agent a of that CTA is row (s * ctas_per_sm + c) * agents + a.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from gpusim.jit import njit
from gpusim.sm import opcodes as oc
from gpusim.sm.program import ProgramTable

_INT, _F64, _I64 = types.int64, types.float64[::1], types.int64[::1]
_I32 = types.int32[::1]
_I64_2D, _F64_2D = types.int64[:, ::1], types.float64[:, ::1]

FIELDS: list[tuple[str, Any]] = [
    ("ctas_per_sm", _INT),
    ("agents", _INT),
    ("ops", _I64_2D),
    ("costs", _F64_2D),
    ("steps", _I32),
    ("offsets", _I64),
    ("ranges", types.int64[:, :, ::1]),  # [program, agent, first and past last row]
    ("items", types.int64[:, :, ::1]),  # [CTA slot, item, program then the views' addresses]
    ("tensors", _I64_2D),  # [program, view slot] → tensor index
    ("item_count", _I64),  # per CTA slot, installed so far
    ("closed", _I64),  # per CTA slot: no more items will come
    ("hungry", _I64),  # per CTA slot: an agent has done its last item and asks for another
    ("live_agents", _I64),  # per CTA slot, 0 is free
    ("started", _F64),  # per CTA slot: when its CTA began
    ("time", _F64),  # per agent: when it can go on, inf if done or blocked
    ("item", _I64),
    ("row", _I64),
    ("blocked_on", _I64),  # barrier, -1 (nothing) or NEXT_ITEM
    ("vector_done", _F64),  # when its latest row work leaves the vector pipes
    ("sending", _I64),  # 0, POSTED, BULK or QUEUED: what it may still be sending or waiting for (gpusim.sm.core),
    ("send_until", _F64),  # up to where, of what its SM was ever told to send (gpusim.memory.uplink),
    ("sent", _F64),  # and not before when all of that is sent
    ("blocked_since", _F64),  # inf: it is not, and was not
    ("tokens", _F64_2D),  # [agent, token] completion
    ("seen", _I64_2D),  # [agent, barrier] phases
    ("phases", _I64_2D),  # [CTA slot, barrier] complete
    ("arrivals", _I64_2D),
    ("arriving", _F64_2D),  # latest arrival of the running phase
    ("loads_phase", _I64_2D),  # [CTA slot, barrier] whether the latest arrival was a copy's completion
    ("phase_time", types.float64[:, :, ::1]),  # [CTA slot, barrier, phase % PHASES]
    ("barrier_count", _I64),
    ("barrier_open", _I64),
    ("shared_free", _F64),  # per SM
    ("tensor_free", _F64),
    ("copy_free", _F64),  # per SM: when its load/store unit takes the next cp.async
    ("vector_free", _F64),
    ("attention", _I64),  # per SM: CTA slots that ended or are hungry since it was last looked after
    ("end_time", _F64),  # per SM: latest completion of anything, for the kernel's end
    ("totals", _I64),  # flops, shared read sectors, shared write sectors
    ("busy", _F64),  # tensor cycles, vector cycles (summed over SMs)
]


@structref.register
class _SmType(types.StructRef):
    """Numba type of `SmState`."""


class SmState(structref.StructRefProxy):
    """The compiled record."""


structref.define_proxy(SmState, _SmType, [name for name, _ in FIELDS])


@njit
def _set_programs(
    s: Any, ops: Any, costs: Any, steps: Any, offsets: Any, ranges: Any, tensors: Any, count: Any, opened: Any
) -> None:
    s.ops = ops
    s.costs = costs
    s.steps = steps
    s.offsets = offsets
    s.ranges = ranges
    s.tensors = tensors
    s.barrier_count = count
    s.barrier_open = opened


@njit
def _set_items(s: Any, items: Any) -> None:
    s.items = items


class SmArray:
    """Builds the SMs' state for one kernel and installs CTAs in it."""

    def __init__(self, sm_count: int, ctas_per_sm: int, agents: int) -> None:
        slots, rows = sm_count * ctas_per_sm, sm_count * ctas_per_sm * agents
        self.ctas_per_sm, self.agents = ctas_per_sm, agents
        self.values: dict[str, Any] = {
            "ctas_per_sm": ctas_per_sm,
            "agents": agents,
            "ops": np.zeros((1, oc.INT_COLUMNS), np.int64),
            "costs": np.zeros((1, oc.FLOAT_COLUMNS)),
            "steps": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            "ranges": np.zeros((1, agents, 2), np.int64),
            "items": np.zeros((slots, 1, 1), np.int64),
            "tensors": np.zeros((1, 1), np.int64),
            "item_count": np.zeros(slots, np.int64),
            "closed": np.zeros(slots, np.int64),
            "hungry": np.zeros(slots, np.int64),
            "started": np.zeros(slots),
            "live_agents": np.zeros(slots, np.int64),
            "time": np.full(rows, np.inf),
            "item": np.zeros(rows, np.int64),
            "row": np.zeros(rows, np.int64),
            "blocked_on": np.full(rows, -1, np.int64),
            "vector_done": np.zeros(rows),
            "sending": np.zeros(rows, np.int64),
            "send_until": np.zeros(rows),
            "sent": np.zeros(rows),
            "blocked_since": np.full(rows, np.inf),
            "tokens": np.zeros((rows, oc.TOKENS)),
            "seen": np.zeros((rows, oc.BARRIERS), np.int64),
            "phases": np.zeros((slots, oc.BARRIERS), np.int64),
            "arrivals": np.zeros((slots, oc.BARRIERS), np.int64),
            "arriving": np.zeros((slots, oc.BARRIERS)),
            "loads_phase": np.zeros((slots, oc.BARRIERS), np.int64),
            "phase_time": np.zeros((slots, oc.BARRIERS, oc.PHASES)),
            "barrier_count": np.zeros(1, np.int64),
            "barrier_open": np.zeros(1, np.int64),
            "shared_free": np.zeros(sm_count),
            "tensor_free": np.zeros(sm_count),
            "copy_free": np.zeros(sm_count),
            "vector_free": np.zeros(sm_count),
            "attention": np.zeros(sm_count, np.int64),
            "end_time": np.zeros(sm_count),
            "totals": np.zeros(3, np.int64),
            "busy": np.zeros(2),
        }
        self.state = SmState(*(self.values[name] for name, _ in FIELDS))
        self._known_programs = self._known_barriers = 0

    def use_programs(self, table: ProgramTable, tensor_rows: list[list[int]]) -> None:
        """Point the state at a (grown) program table."""
        if len(table.ranges) == self._known_programs:
            return
        self._known_programs = len(table.ranges)
        barriers = table.barriers
        count = np.array([b.count for b in barriers] or [1], np.int64)
        opened = np.array([b.open_phases for b in barriers] or [0], np.int64)
        ranges = np.array(table.ranges, np.int64)
        tensors = np.zeros((len(tensor_rows), max(map(len, tensor_rows))), np.int64)
        for program, row in enumerate(tensor_rows):
            tensors[program, : len(row)] = row
        _set_programs(self.state, table.ops, table.costs, table.steps, table.offsets, ranges, tensors, count, opened)
        self.values["barrier_count"], self.values["barrier_open"] = count, opened
        # Barriers that a later item names first: CTAs that run already have not touched them.
        new = slice(self._known_barriers, len(barriers))
        self.values["phases"][:, new] = opened[new]
        self._known_barriers = len(barriers)
        self.values["ranges"] = ranges

    def install(self, slot: int, items: list[list[int]], start: float, closed: bool) -> None:
        """Make a CTA slot run `items` (program, view addresses) from cycle `start`; more may come unless `closed`."""
        v = self.values
        self._reserve(len(items), items)
        for column, item in enumerate(items):
            v["items"][slot, column, : len(item)] = item
        v["item_count"][slot] = len(items)
        v["closed"][slot] = closed
        v["hungry"][slot] = 0
        v["live_agents"][slot] = self.agents
        v["started"][slot] = start
        rows = slice(slot * self.agents, (slot + 1) * self.agents)
        v["time"][rows] = start
        v["item"][rows] = 0
        v["row"][rows] = v["ranges"][items[0][0], :, 0]
        v["blocked_on"][rows] = -1
        v["blocked_since"][rows] = np.inf
        v["sending"][rows] = 0
        v["seen"][rows] = 0
        opened = v["barrier_open"]
        v["phases"][slot, : len(opened)] = opened
        v["arrivals"][slot] = 0
        v["arriving"][slot] = 0
        v["phase_time"][slot] = 0

    def feed(self, slot: int, items: list[list[int]], now: float) -> None:
        """Append items to a hungry CTA and wake the agents that wait for them."""
        v = self.values
        count = int(v["item_count"][slot])
        slowest = int(v["item"][slot * self.agents : (slot + 1) * self.agents].min())
        self._reserve(count - slowest + len(items), items)
        columns = v["items"].shape[1]
        for item in items:
            v["items"][slot, count % columns, : len(item)] = item
            count += 1
        v["item_count"][slot] = count
        v["hungry"][slot] = 0
        for row in range(slot * self.agents, (slot + 1) * self.agents):
            if v["blocked_on"][row] == oc.NEXT_ITEM:
                program = v["items"][slot, v["item"][row] % columns, 0]
                v["blocked_on"][row] = -1
                v["row"][row] = v["ranges"][program, row - slot * self.agents, 0]
                v["time"][row] = now

    def close(self, slot: int, now: float) -> None:
        """Tell a hungry CTA that no item is left: its waiting agents end, the others will."""
        v = self.values
        v["closed"][slot] = 1
        v["hungry"][slot] = 0
        sm = slot // self.ctas_per_sm
        for row in range(slot * self.agents, (slot + 1) * self.agents):
            if v["blocked_on"][row] == oc.NEXT_ITEM:
                v["blocked_on"][row] = -1
                v["live_agents"][slot] -= 1
                v["end_time"][sm] = max(v["end_time"][sm], now, v["sent"][row] if v["sending"][row] else now)

    def _reserve(self, count: int, items: list[list[int]]) -> None:
        """Have at least `count` columns (and a few, for agents of a persistent CTA that run ahead), wide enough."""
        v = self.values
        old, columns, width = v["items"], v["items"].shape[1], max(map(len, items))
        if max(count, oc.ITEM_RING) <= columns and width <= old.shape[2]:
            return
        if max(count, oc.ITEM_RING) > columns:
            columns = max(count, oc.ITEM_RING, 2 * columns)
        if width > old.shape[2]:
            width = max(width, 2 * old.shape[2])
        grown = np.zeros((old.shape[0], columns, max(width, old.shape[2])), np.int64)
        for slot, installed in enumerate(v["item_count"]):
            kept = np.arange(max(0, installed - old.shape[1]), installed)
            grown[slot, kept % columns, : old.shape[2]] = old[slot, kept % old.shape[1]]
        v["items"] = grown
        _set_items(self.state, grown)
