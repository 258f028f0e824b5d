"""Compiles tile programs into operation tables, once per shape.

Work items with equal `shape_key` run the same operations at other addresses, so their programs are compiled once and
replayed with each item's view addresses. The compiler runs the very generators that the numeric driver runs.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusim.errors import UserError
from gpusim.memory.sizes import THROUGH_L1
from gpusim.sm import opcodes as oc
from gpusim.spec import GpuSpec
from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, WorkItem
from traces.ops import HINTS, Arrive, Await, Barrier, Load, Matmul, Op, Reduce, Store, Vector, Wait
from traces.tensor import Tile

SYNC_CYCLES = 150.0
"""Latency of dependent row work: shuffles of the row maximum and sum, conversions; fitted with the next two."""
ELEMENTWISE_CYCLES = 30.0
"""Latency of work on single elements: a load from shared memory, or an exponential; estimate."""
SUM_CYCLES = 50.0
"""Latency of work that yields no value: each thread adds up what it loads, and nobody waits for the sum; fitted to
reads by few threads (experiments/measured/h200/sm_bandwidth.csv)."""
MATMUL_LATENCY_CYCLES = {"wgmma": 128.0, "mma_sync": 33.0}
"""From the end of a product's issue to its accumulators: mma.sync m16n8k16 takes about 33 cycles, a full wgmma about
128 (arXiv:2402.13499, tables of Hopper tensor-core latency)."""

MMA_DEPTH = 16
"""Of the summed dimension in an mma.sync of 16-bit numbers. The next one that adds to the same accumulator waits for
it, so a product takes no less than their latencies, however few columns a warp has."""
COPY_BYTES_PER_CLK = 64
"""What an SM's load/store unit takes of cp.async, whose warps go on only then: 32 KiB take 546 cycles, 64 KiB 1047,
between clock stamps in gemm.cu on an H200. TMA takes the time of one instruction."""
LANDING_BYTES_PER_CLK = 80
"""What cp.async takes of the time in which warps could fetch fragments, where all of them copy and then all multiply:
with two CTAs on an SM a step of gemm.cu takes 1218 cycles, in which a CTA fetches 96 KiB and copies 32. Fitted to our
own kernels that are not held out. Elsewhere what lands is written at the rate of shared memory."""
FRAGMENT_BYTES_PER_CLK = 512
"""ldmatrix brings a warp's fragments into its registers at 128 B per clock and quarter of the SM. Its mma.sync waits as
long, but not that of other CTAs; fitted to products of our own kernels that are not held out, which fetch 96 to 288 KB
for the same FLOPs."""
DEPENDENT_CYCLES = 4.5
"""From an instruction to one that needs its result: 4 cycles for most, more for a few (arXiv:2402.13499)."""

Costs = tuple[float, float, float, float, float]
NO_COST: Costs = (0.0, 0.0, 0.0, 0.0, 0.0)


class ProgramTable:
    """All operations compiled so far; grows by doubling.

    A program repeats a few operations on other tiles, so a step is an operation's number and a tile's offset: a causal
    kernel of 131072 rows has ten million steps, and some hundred operations.

    Attributes:
        ops, costs: the operations' columns (`gpusim.sm.opcodes`), integer and float; `kinds` rows are in use.
        steps, offsets: row of `ops` of each step, and what stands in for its OFFSET; `used` are in use.
        ranges: [program * agents + agent] → (first step, past the last step).
        agents: agents per work item of the current kernel.
    """

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self.ops: NDArray[np.int64] = np.zeros((64, oc.INT_COLUMNS), np.int64)
        self.costs: NDArray[np.float64] = np.zeros((64, oc.FLOAT_COLUMNS))
        self.steps: NDArray[np.int32] = np.zeros(1024, np.int32)
        self.offsets: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.start_kernel()

    @property
    def kinds(self) -> int:
        """Operations that differ in more than their offset."""
        return len(self._kinds)

    def start_kernel(self) -> None:
        """Forget the programs of the kernel before."""
        self.used = 0
        self._kinds: dict[tuple[float, ...], int] = {}
        self.ranges: list[list[tuple[int, int]]] = []
        self._known: dict[Any, int] = {}
        self._barriers: dict[Barrier, int] = {}

    @property
    def barriers(self) -> list[Barrier]:
        """Barriers named so far, in index order."""
        return list(self._barriers)

    def program_of(self, launch: KernelLaunch, item: WorkItem) -> int:
        """Index of the item's program, compiling it if its shape is new."""
        key = item.shape_key()
        if key not in self._known:
            self._known[key] = self._compile(launch, item)
        return self._known[key]

    def _compile(self, launch: KernelLaunch, item: WorkItem) -> int:
        agents = launch.agents(item.matrices(), item.parameters)
        compiler = _Compiler(self._gpu, launch, item, len(agents), self._barriers)
        # Barriers start open for a lone item; the order of values is the same for every item of a CTA.
        run_agents(agents, compiler, BarrierState())
        rows = []
        for ints, floats in zip(compiler.ints, compiler.floats, strict=True):
            first = self.used
            self._append(ints, floats)
            rows.append((first, self.used))
        self.ranges.append(rows)
        return len(self.ranges) - 1

    def _append(self, ints: list[list[int]], floats: list[list[float]]) -> None:
        end = self.used + len(ints)
        while end > len(self.steps):
            self.steps = np.concatenate([self.steps, np.zeros_like(self.steps)])
            self.offsets = np.concatenate([self.offsets, np.zeros_like(self.offsets)])
        for step, (op, costs) in enumerate(zip(ints, floats, strict=True), self.used):
            self.offsets[step] = op[oc.OFFSET]
            op[oc.OFFSET] = 0
            self.steps[step] = self._kind_of(op, costs)
        self.used = end

    def _kind_of(self, op: list[int], costs: list[float]) -> int:
        """Row of an operation, which is added if it is new."""
        columns = (*op, *costs)
        if columns in self._kinds:
            return self._kinds[columns]
        kind = self._kinds[columns] = self.kinds
        if kind == len(self.ops):
            self.ops = np.concatenate([self.ops, np.zeros_like(self.ops)])
            self.costs = np.concatenate([self.costs, np.zeros_like(self.costs)])
        self.ops[kind], self.costs[kind] = op, costs
        return kind


class _Token:
    """Stand-in for an asynchronous value: which agent's token, and the view slot a tile came from (-1: none)."""

    __slots__ = ("agent", "number", "slot")

    def __init__(self, agent: int, number: int, slot: int = -1) -> None:
        self.agent = agent
        self.number = number
        self.slot = slot


class _Compiler:
    """Turns operations into table rows; values are stand-ins."""

    def __init__(
        self, gpu: GpuSpec, launch: KernelLaunch, item: WorkItem, agents: int, barriers: dict[Barrier, int]
    ) -> None:
        self._gpu, self._launch, self._item, self._barriers = gpu, launch, item, barriers
        counts = [len(view.addresses) for view in item.views]
        self._bases = list(accumulate(counts, initial=1))  # column 0 of an item row is the program
        self._issued = [0] * agents
        self.ints: list[list[list[int]]] = [[] for _ in range(agents)]
        self.floats: list[list[list[float]]] = [[] for _ in range(agents)]
        sm = gpu.sm
        # Warps fetch fragments (ldmatrix) and multiply by themselves.
        self._by_warps = launch.instruction == "mma_sync"
        self._warps_copy = launch.copied_by == "cp_async"
        self._landing_bytes_per_clk = (
            LANDING_BYTES_PER_CLK if self._warps_copy and launch.in_step else sm.shared_bytes_per_clk
        )
        self._efficiency = sm.mma_sync_efficiency if self._by_warps else sm.wgmma_efficiency

    def perform(self, agent: int, op: Op) -> Any:
        match op:
            case Load():
                return self._load(agent, op)
            case Wait(value):
                if isinstance(value, _Token):
                    self._emit(agent, {oc.CODE: oc.WAIT, oc.TOKEN: self._own(agent, value), oc.RUNS: value.slot >= 0})
            case Matmul():
                return self._matmul(agent, op)
            case Vector():
                return self._vector(agent, op)
            case Store(tile, _) | Reduce(tile, _):
                if tile.size_bytes:
                    flags = {oc.FLAGS: int(isinstance(op, Reduce) and op.by_fragments)}
                    flags[oc.TOKEN] = int(self._launch.copied_by == "tma")
                    self._emit(agent, self._access(oc.STORE if isinstance(op, Store) else oc.REDUCE, tile) | flags)
            case Arrive(barrier, after):
                token = self._own(agent, after) if isinstance(after, _Token) else -1
                copied = isinstance(after, _Token) and after.slot >= 0
                row = {oc.CODE: oc.ARRIVE, oc.SLOT: self._barrier(barrier), oc.TOKEN: token, oc.RUNS: copied}
                self._emit(agent, row)
            case Await(barrier):
                self._emit(agent, {oc.CODE: oc.AWAIT, oc.SLOT: self._barrier(barrier)})
        return None

    def _emit(self, agent: int, ints: dict[int, int], floats: Costs = NO_COST) -> None:
        row = [0] * oc.INT_COLUMNS
        for column, value in ints.items():
            row[column] = value
        self.ints[agent].append(row)
        self.floats[agent].append(list(floats))

    def _barrier(self, barrier: Barrier) -> int:
        index = self._barriers.setdefault(barrier, len(self._barriers))
        if index >= oc.BARRIERS:
            raise UserError(
                f"kernel {self._launch.name} uses more than {oc.BARRIERS} barriers per CTA; use fewer stages"
            )
        return index

    def _new_token(self, agent: int, slot: int = -1) -> _Token:
        token = _Token(agent, self._issued[agent], slot)
        self._issued[agent] += 1
        return token

    def _own(self, agent: int, token: _Token) -> int:
        """Table index of a token; it must be the agent's own and not yet overwritten."""
        if token.agent != agent:
            raise ValueError(
                f"kernel {self._launch.name}: agent {agent} waits for agent {token.agent}'s load; use a barrier"
            )
        if self._issued[agent] - token.number > oc.TOKENS:
            raise UserError(
                f"kernel {self._launch.name} keeps more than {oc.TOKENS} copies in flight; use fewer stages"
            )
        return token.number % oc.TOKENS

    def _access(self, code: int, tile: Tile) -> dict[int, int]:
        slot = tile.matrix.slot
        view = self._item.views[slot]
        offset, runs, run_bytes, pitch_bytes = tile.span(view)
        return {
            oc.CODE: code,
            oc.SLOT: slot,
            oc.OFFSET: offset,
            oc.RUNS: runs,
            oc.RUN_BYTES: run_bytes,
            oc.PITCH: pitch_bytes,
            oc.SHARES: 1,
            oc.BASE: self._bases[slot],
            oc.PAGE_BYTES: view.page_bytes,
        }

    def _load(self, agent: int, op: Load) -> Any:
        if not op.tile.size_bytes:
            return None
        slot = op.tile.matrix.slot
        if op.multicast > 1 and self._item.views[slot].page_bytes:
            raise ValueError(f"kernel {self._launch.name}: tiles of a stacked view cannot be multicast")
        token = self._new_token(agent, slot)
        row = self._access(oc.LOAD, op.tile)
        row[oc.TOKEN], row[oc.SHARE], row[oc.SHARES] = token.number % oc.TOKENS, op.share, op.multicast
        row[oc.BY_WARPS] = int(self._launch.copied_by != "tma")
        row[oc.FLAGS] = HINTS.index(op.hint) + (THROUGH_L1 if op.through_l1 else 0)
        copy = op.tile.size_bytes / COPY_BYTES_PER_CLK if self._warps_copy else 0.0
        landing = op.tile.size_bytes / self._landing_bytes_per_clk
        self._emit(agent, row, (0.0, copy, 0.0, landing, 0.0))
        return token

    def _shared_cycles(self, moved_bytes: int) -> float:
        return moved_bytes / self._gpu.sm.shared_bytes_per_clk

    def _matmul(self, agent: int, op: Matmul) -> Any:
        m, n, k = op.shape
        element = self._item.views[0].tensor.dtype
        flops = 2 * m * n * k
        peak = self._gpu.tensor_flops_per_clk(element.name)
        cycles = flops / (peak * self._efficiency) if peak else flops / (2 * self._gpu.sm.fp32_lanes)
        # mma.sync: a warp fetches A of its rows and B of its columns; wgmma: every 64-row instruction fetches all of B.
        columns = self._launch.warp_columns if self._by_warps else 1
        readers = self._launch.warps // columns if self._by_warps else -(-m // 64)
        b_bytes = readers * n * k * element.element_bytes
        a_bytes = 0 if op.a_in_registers else columns * m * k * element.element_bytes
        token = self._new_token(agent) if op.asynchronous else None
        row = {
            oc.CODE: oc.MATMUL,
            oc.TOKEN: token.number % oc.TOKENS if token else -1,
            oc.SHARED_READ: (a_bytes + b_bytes) // 32,
            oc.FLOPS: flops,
        }
        for operand, slot, sectors, moved in (
            (op.a, oc.A_SLOT, oc.A_SECTORS, a_bytes),
            (op.b, oc.B_SLOT, oc.B_SECTORS, b_bytes),
        ):
            if isinstance(operand, _Token) and operand.slot >= 0:
                row[slot], row[sectors] = operand.slot, moved // 32
        latency, fragments = MATMUL_LATENCY_CYCLES[self._launch.instruction], 0.0
        shared = self._shared_cycles(a_bytes + b_bytes)
        if self._by_warps:
            fragments = (a_bytes + b_bytes) / FRAGMENT_BYTES_PER_CLK
            latency = max(latency, -(-k // MMA_DEPTH) * latency - max(cycles + fragments, shared))
        self._emit(agent, row, (cycles, fragments, latency, shared, 0.0))
        return token

    def _vector(self, agent: int, op: Vector) -> Any:
        sm = self._gpu.sm
        # A warp's exponentials and its FP32 work depend on each other, so they do not overlap.
        cycles = op.exps / sm.exp_per_clk + op.instructions / sm.fp32_lanes
        if cycles or op.chain:
            half = op.shared_bytes // 64
            row = {oc.CODE: oc.VECTOR, oc.SHARED_READ: half, oc.SHARED_WRITE: half}
            latency = 0.0
            if cycles:
                latency = ELEMENTWISE_CYCLES if op.elementwise else SYNC_CYCLES if op.results else SUM_CYCLES
            # mma.sync reads registers and is issued as any other instruction, so FP32 work holds it up.
            issue = op.instructions / sm.fp32_lanes if self._by_warps else 0.0
            latency += max(0.0, DEPENDENT_CYCLES * op.chain - cycles)
            shared = self._shared_cycles(op.shared_bytes)
            self._emit(agent, row, (issue, cycles, latency, shared, 1 - 1 / op.parts))
        if op.results == 1:
            return op.inputs[0] if op.inputs and not cycles else None  # free work is a view of its input
        return (None,) * op.results
