"""The machine: SimPy processes for the kernel stream, the CTA scheduler and the SMs.

SimPy carries the order of SM turns; everything per line or sector is compiled (`gpusim.sm.core`, `gpusim.memory`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import simpy

from gpusim.checks import check_kernel
from gpusim.counters import LEVELS, C
from gpusim.cta_log import CtaLog
from gpusim.errors import UserError
from gpusim.memory.state import ACTIVITIES, MemorySystem
from gpusim.result import KernelResult, Result, Timeline
from gpusim.sm import opcodes as oc
from gpusim.sm.core import step
from gpusim.sm.occupancy import RESERVED_SHARED_BYTES, ctas_per_sm
from gpusim.sm.program import ProgramTable
from gpusim.sm.state import SmArray
from gpusim.spec import GpuSpec
from traces.execute import Deadlock
from traces.launch import KernelLaunch, Workload

L2_STARTS = ("cold", "warm", "flush")
"""cold: the L2 starts empty. warm: the same launches ran once before. flush: it is emptied before every kernel."""

Progress = Callable[[float], None]
"""Called now and then with the share of the work that has been handed out, 0 to 1; every kernel counts the same."""


def simulate(
    plan: Workload,
    gpu: GpuSpec,
    l2: str = "cold",
    check: bool = False,
    progress: Progress | None = None,
    record_ctas: bool = False,
) -> Result:
    """Replay a plan's launches on a GPU, one kernel after another.

    Args:
        plan: from an algorithm's `plan(problem, schedule)`, a trace file, or any other tensors and kernels.
        gpu: the machine.
        l2: what the L2 holds at the start, one of `L2_STARTS`.
        check: verify conservation of bytes at every level after each kernel.
        progress: called with the share of the work that is done.
        record_ctas: note SM, start and end of every CTA (`KernelResult.cta_times`).

    Raises:
        UserError: a kernel does not fit the GPU, or `l2` is unknown.
        gpusim.checks.ConservationError: with `check`, when a level's books do not balance.
    """
    if l2 not in L2_STARTS:
        raise UserError(f"l2 {l2!r} is not one of {', '.join(L2_STARTS)}")
    for launch in plan.launches:
        ctas_per_sm(gpu, launch.resources, launch.name)
    started = time.perf_counter()
    memory = MemorySystem(gpu, plan.tensors, flushing=l2 == "flush")
    rounds = 2 if l2 == "warm" else 1
    handed = 0  # work indices of the current kernel
    finished = 0  # kernels

    def advance(launch: KernelLaunch) -> None:
        nonlocal handed, finished
        handed += 1
        if handed == launch.work_count:
            handed, finished = 0, finished + 1
        if progress:
            progress((finished + handed / launch.work_count) / (rounds * len(plan.launches)))

    kernels: list[KernelResult] = []
    for number in range(rounds):
        memory.start_timeline()
        kernels, now = [], 0.0
        for launch in plan.launches:
            if l2 == "flush":
                memory.flush()
            idle_writes = memory.settle(now)
            log = CtaLog(launch.ctas) if record_ctas else None
            kernel = _Kernel(gpu, memory, launch, advance, log).run(now)
            kernels.append(replace(kernel, idle_write_by_tensor=idle_writes))
            now += kernels[-1].cycles
            if check and number == rounds - 1:
                check_kernel(kernels[-1], plan, launch, memory)
    return Result(gpu, plan, l2, tuple(kernels), _timeline(memory), time.perf_counter() - started)


class _Kernel:
    """One kernel launch on the machine."""

    def __init__(
        self,
        gpu: GpuSpec,
        memory: MemorySystem,
        launch: KernelLaunch,
        advance: Callable[[KernelLaunch], None],
        log: CtaLog | None,
    ) -> None:
        self._gpu, self._memory, self._launch, self._advance, self._log = gpu, memory, launch, advance, log
        self._programs = ProgramTable(gpu)
        self._tensor_rows: list[list[int]] = []
        self._lowest = list(range(launch.cluster))  # by cluster rank, the lowest work index left
        self._taken: set[int] = set()  # those beyond it
        self._started = 0
        self._cta_in: dict[int, int] = {}
        warps = -(-launch.resources.threads // 32)
        self._turnover_cycles = gpu.sm.cta_turnover_cycles + gpu.sm.warp_launch_cycles * warps
        self._occupancy = ctas_per_sm(gpu, launch.resources, launch.name)
        first = next(items for index in range(launch.work_count) if (items := self._items(index)))
        # The first query block of a causal kernel may see no key, and multiply nothing; then the last one does.
        next(items for index in reversed(range(launch.work_count)) if (items := self._items(index)))
        # Tensor cores draw so much power that the clock comes down.
        busy = bool(np.any(self._programs.ops[: self._programs.kinds, oc.CODE] == oc.MATMUL))
        self._gpu = gpu.at_clock(gpu.clock_hz("sustained")) if busy else gpu
        memory.run_at(self._gpu, self._occupancy * (launch.resources.shared_bytes + RESERVED_SHARED_BYTES))
        self._sms = SmArray(gpu.sm.count, self._occupancy, len(self._programs.ranges[first[0][0]]))

    def run(self, start: float) -> KernelResult:
        """Simulate from cycle `start` to the kernel's end."""
        gpu = self._gpu
        env = simpy.Environment(initial_time=start)
        begin = start + gpu.sm.kernel_overhead_cycles
        slots_by_sm = self._place_first(begin)
        processes = [env.process(self._sm(env, sm, at)) for sm, at in slots_by_sm.items()]
        env.run(simpy.AllOf(env, processes))
        sms = self._sms.values
        if stuck := int(np.count_nonzero(sms["live_agents"])):
            raise Deadlock(f"kernel {self._launch.name}: {stuck} CTAs wait at barriers that nobody completes")
        launch = self._launch
        left = sum(len(range(lowest, launch.work_count, launch.cluster)) for lowest in self._lowest) - len(self._taken)
        if left:
            raise RuntimeError(f"kernel {self._launch.name} ended with {left} work indices not taken")
        end = max(begin, float(sms["end_time"].max()))
        return self._result(start, end - start)

    def _result(self, start: float, cycles: float) -> KernelResult:
        gpu, launch = self._gpu, self._launch
        flops, shared_read, shared_write = (int(x) for x in self._sms.values["totals"])
        counts = self._memory.values["counters"].copy()
        landed = int(counts[:, C.SHARED_WRITE].sum())
        dtype = self._memory.tensors[0].dtype.name
        peak = gpu.tensor_flops_per_clk(dtype) or 2 * gpu.sm.fp32_lanes
        return KernelResult(
            name=launch.name,
            ctas=launch.ctas,
            ctas_per_sm=self._occupancy,
            start_cycle=start,
            cycles=cycles,
            flops=flops,
            shared_read_bytes=32 * shared_read,
            shared_write_bytes=32 * (shared_write + landed),
            tensor_busy_cycles=float(self._sms.values["busy"][0]),
            counts=counts,
            dirty_bytes=self._memory.dirty_bytes(),
            clock_hz=gpu.sm.clock_hz,
            tensor_utilisation=flops / (peak * gpu.sm.count * cycles) if cycles else 0.0,
            dram_peak_bytes_per_cycle=gpu.hbm_bytes_per_clk,
            memory_side=gpu.memory_side_cache.size_bytes > 0,
            cta_times=self._log.times(launch.name, gpu.sm.clock_hz) if self._log else None,
        )

    def _items(self, index: int) -> list[list[int]]:
        """The items of a work index as table rows: program, then the views' addresses."""
        rows = []
        for item in self._launch.work(index):
            program = self._programs.program_of(self._launch, item)
            if program == len(self._tensor_rows):
                self._tensor_rows.append([v.tensor.index for v in item.views])
            rows.append([program, *chain.from_iterable(v.addresses for v in item.views)])
        return rows

    def _take(self, cta: int) -> list[list[int]]:
        """The next work of CTA `cta`; empty when none is left, or when the only index it has holds none.

        CTAs that ask for work at about the same time are served in the order of their distance to the counter, which is
        the same every round: so a CTA gets the index one grid after its last as long as that is within a grid of the
        lowest index left, and else the lowest one.
        """
        launch = self._launch
        rank = cta % launch.cluster
        if not launch.queue:
            self._advance(launch)
            self._lowest[rank] += launch.cluster
            return self._items(cta)
        while (lowest := self._lowest[rank]) < launch.work_count:
            own = lowest + (cta - lowest) % launch.ctas
            free = own < launch.work_count and own % launch.cluster == rank and own not in self._taken
            index = own if free else lowest
            self._taken.add(index)
            while self._lowest[rank] in self._taken:
                self._taken.remove(self._lowest[rank])
                self._lowest[rank] += launch.cluster
            self._advance(launch)
            items = self._items(index)
            if items:
                return items
        return []

    def _place_first(self, begin: float) -> dict[int, float]:
        """Fill the empty GPU in CTA → SM order; returns the start time of each SM that has work.

        A CTA that has nothing to do ends at once, and its slot takes another after those that were never used.
        """
        spec = self._gpu.sm
        order = spec.placement(self._launch.ctas)
        free = deque((sm * self._occupancy + number, begin) for number in range(self._occupancy) for sm in order)
        starts: dict[int, float] = {}
        while free and self._started < self._launch.ctas:
            slot, ready = free.popleft()
            sm = slot // self._occupancy
            launched = begin + self._started * spec.cta_launch_interval_cycles
            at = max(ready, launched) + sm % 2 * spec.tpc_stagger_cycles
            if self._start_cta(slot, at):
                starts[sm] = min(at, starts.get(sm, at))
            else:
                free.append((slot, at + self._turnover_cycles))
        return starts

    def _start_cta(self, slot: int, at: float) -> bool:
        """Start the grid's next CTA in a slot; False if it has nothing to do."""
        cta = self._started
        self._started += 1
        if self._log:
            self._log.start(cta, slot // self._occupancy, at)
        items = self._take(cta)
        if not items:
            return False
        self._sms.use_programs(self._programs, self._tensor_rows)
        self._cta_in[slot] = cta
        self._sms.install(slot, items, at, closed=not self._launch.queue)
        return True

    def _sm(self, env: simpy.Environment, sm: int, start: float) -> Generator[simpy.Event, None, None]:
        """An SM: takes its turns until it has no CTA left and there is none to start."""
        state, memory = self._sms.state, self._memory.state
        attention = self._sms.values["attention"]
        yield env.timeout(start - env.now)
        while True:
            now = env.now
            due = step(state, memory, sm, now)
            while attention[sm]:
                attention[sm] = 0
                self._look_after(sm, now)
                due = step(state, memory, sm, now)
            if due == math.inf:
                return
            yield env.timeout(due - now)

    def _look_after(self, sm: int, now: float) -> None:
        """Give hungry CTAs of the SM their next work, and free slots the next CTA of the grid."""
        values = self._sms.values
        for slot in range(sm * self._occupancy, (sm + 1) * self._occupancy):
            if values["hungry"][slot]:
                items = self._take(self._cta_in[slot])
                self._sms.use_programs(self._programs, self._tensor_rows)
                if items:
                    self._sms.feed(slot, items, now)
                else:
                    self._sms.close(slot, now)
            if slot in self._cta_in and values["live_agents"][slot] == 0:
                cta = self._cta_in.pop(slot)
                if self._log:
                    self._log.end(cta, values["end_time"][sm])
                while self._started < self._launch.ctas and slot not in self._cta_in:
                    self._start_cta(slot, now + self._turnover_cycles)


def _timeline(memory: MemorySystem) -> Timeline:
    v = memory.values
    bins = int(v["touched_bins"][0])
    names = [t.name for t in memory.tensors]
    traffic: dict[str, dict[str, Any]] = {}
    for level, level_name in enumerate(LEVELS):
        rows = v["timeline"][level, :, :bins]
        traffic[level_name] = {n: rows[i].copy() for i, n in enumerate(names) if rows[i].any()}
    activity = {name: np.array(v["activity"][i, :bins]) for i, name in enumerate(ACTIVITIES)}
    return Timeline(float(v["bin_cycles"][0]), traffic, activity)
