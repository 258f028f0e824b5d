"""The tiles that suit a GPU: what `--schedule best` chooses among a small grid of legal ones, and why.

A plan's cost is the longest of a few times that can be told without simulating:

* what the L2 and the HBM take for the plan: its SM-port bytes, and the bytes of its textbook form (the compulsory ones
  if all its tensors fit into the L2), both in closed form;
* what the SM with the most CTAs takes for each kernel: its tensor cores, vector pipes, shared memory and port side by
  side, or one CTA's operations one after another, of which resident CTAs overlap.

Cycles per operation come from the tables that the simulator replays, for a problem cut to a few tiles and scaled up.
Plans within `CLOSE` of the least cost are as good as each other for so simple a model; the one with the fewest SM-port
bytes is chosen of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusim.errors import UserError
from gpusim.plans import check_fits, make_plan
from gpusim.sm import opcodes as oc
from gpusim.sm.occupancy import ctas_per_sm
from gpusim.sm.program import ProgramTable
from gpusim.spec import GpuSpec
from traces.algorithms import algorithm
from traces.analytic import compulsory_bytes, sm_port_bytes, textbook, total
from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.ops import Matmul, Op, Vector
from traces.problem import AttentionProblem

__all__ = ["Cost", "best_plan", "cost_of"]

TILES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Rows or columns of a tile: powers of two, and half-way between."""
STEPS = (32, 64, 128)
"""Elements of the k dimension that a GEMM takes at a time."""
WARPS = (4, 8, 16)
CLOSE = 1.05
TILES_WALKED = 8
"""Longest problem whose operations are counted, in tiles each way: programs repeat themselves."""
SAMPLES = 4
"""Work items of a kernel whose operations are counted, spread over the grid."""
OTHER_REGISTERS = 32
"""Registers of a thread besides its share of the accumulators, at least."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan is thought to take.

    Attributes:
        cycles: SM cycles, launch overhead left out.
        bound: what takes that long.
        port_bytes: SM-port bytes of the plan.
        resident: CTAs of the longest kernel on one SM.
    """

    cycles: float
    bound: str
    port_bytes: int
    resident: int


def best_plan(
    name: str, problem: AttentionProblem, gpu: GpuSpec, changes: Mapping[str, str | int | bool] | None = None
) -> tuple[Plan, str]:
    """The plan of least cost, and one line that says what was chosen and why.

    The keys `tile_…`, those with a prefix (`pv_tile_…`), and `warps` are chosen; a key in `changes` is not. Tiles of
    different prefixes belong to different kernels, so each group is chosen by itself.

    Raises:
        UserError: as `gpusim.plans.make_plan`, or nothing in the grid fits the GPU.
    """
    given = dict(changes or {})
    default = make_plan(name, problem, gpu, given)
    groups = _tile_keys(type(default.schedule), given)
    if not groups:
        return default, f"{name}: best schedule: it has no tile to choose, so the default one"
    free = [key for keys in groups for key in keys]
    unchosen = _cost_if_legal(default, gpu)
    if unchosen is None:  # start from the smallest tiles, so that one group's do not rule out all of another's
        given |= {key: _values(key, problem)[0] for key in free}
    chosen, tried = (default, unchosen) if unchosen else None, 0
    for keys in groups:
        grid = list(_legal(name, problem, gpu, given, keys))
        tried += len(grid)
        chosen = _cheapest(([chosen[0]] if chosen else []) + grid, gpu)
        if chosen is None:
            check_fits(default, gpu)
            raise UserError(f"algorithm {name}: no tiles of {TILES[0]} to {TILES[-1]} fit {gpu.name}")
        given |= {key: getattr(chosen[0].schedule, key) for key in keys}
    assert chosen is not None  # there is a group
    return chosen[0], _reason(*chosen, unchosen, tried, free)


def cost_of(plan: Plan, gpu: GpuSpec) -> Cost:
    """Cost of a plan that fits the GPU."""
    memory, level = _memory_cycles(plan, gpu)
    sample = _cut(plan)
    pairs = plan.problem.flops() / sample.problem.flops()
    kernels = [
        _kernel_cycles(launch, short, pairs, gpu) for launch, short in zip(plan.launches, sample.launches, strict=True)
    ]
    busy = sum(cycles for cycles, _, _ in kernels)
    _, bound, resident = max(kernels)
    return Cost(max(busy, memory), bound if busy > memory else level, total(sm_port_bytes(plan)), resident)


def _tile_keys(schedule: type[Any], given: Mapping[str, object]) -> list[list[str]]:
    """The free tile keys, grouped by what stands before `tile_`; `warps` goes with the first group."""
    free = [f.name for f in fields(schedule) if f.name not in given]
    tiles = [key for key in free if "tile_" in key]
    groups = [list(keys) for _, keys in groupby(sorted(tiles, key=_prefix), key=_prefix)]
    if groups and "warps" in free:
        groups[0].append("warps")
    return groups


def _prefix(key: str) -> str:
    return key.partition("tile_")[0]


def _legal(
    name: str, problem: AttentionProblem, gpu: GpuSpec, given: Mapping[str, Any], keys: Sequence[str]
) -> Iterator[Plan]:
    """Plans with every combination of values of `keys` that the algorithm allows and the GPU has room for."""
    for values in product(*(_values(key, problem) for key in keys)):
        try:
            plan = make_plan(name, problem, gpu, {**given, **dict(zip(keys, values, strict=True))})
            check_fits(plan, gpu)
        except UserError:
            continue
        yield plan


def _values(key: str, problem: AttentionProblem) -> Sequence[int]:
    """Values of a schedule key: tile sizes up to the first that covers the query rows, the keys or d."""
    what = key.rpartition("_")[2]
    if what == "warps":
        return WARPS
    if what not in ("q", "kv", "d"):
        return STEPS
    length = {"q": problem.seq, "kv": problem.seq_kv, "d": problem.dim_v}[what]
    return [size for number, size in enumerate(TILES) if number == 0 or TILES[number - 1] < length]


def _cheapest(plans: Sequence[Plan], gpu: GpuSpec) -> tuple[Plan, Cost] | None:
    """Of the plans whose accumulators fit into registers, the one with the fewest bytes among the (nearly) fastest."""
    bounded = sorted(((_memory_cycles(plan, gpu)[0], number, plan) for number, plan in enumerate(plans)))
    known: list[tuple[Plan, Cost]] = []
    for least, _, plan in bounded:
        if known and least > CLOSE * min(cost.cycles for _, cost in known):
            break  # what memory alone takes is too long already, here and from here on
        cost = _cost_if_legal(plan, gpu)
        if cost is not None:
            known.append((plan, cost))
    if not known:
        return None
    limit = CLOSE * min(cost.cycles for _, cost in known)
    return min((x for x in known if x[1].cycles <= limit), key=lambda x: (x[1].port_bytes, x[1].cycles))


def _cost_if_legal(plan: Plan, gpu: GpuSpec) -> Cost | None:
    """The cost; None if the plan does not fit the GPU or a CTA's accumulators do not fit into its registers."""
    try:
        check_fits(plan, gpu)
    except UserError:
        return None
    for launch in _cut(plan).launches:
        need = launch.resources
        held = _accumulators(launch, next(_samples(launch)))
        if held + OTHER_REGISTERS * need.threads > need.registers_per_thread * need.threads:
            return None
    return cost_of(plan, gpu)


def _cut(plan: Plan) -> Plan:
    """The same schedule on at most `TILES_WALKED` tiles of rows and keys; the plan itself where lengths matter."""
    p, s = plan.problem, plan.schedule
    if p.lengths or p.page_size or p.window:
        return plan
    rows = min(p.seq, TILES_WALKED * getattr(s, "tile_q", p.seq))
    keys = min(p.seq_kv, TILES_WALKED * getattr(s, "tile_kv", p.seq_kv))
    cut = algorithm(plan.algorithm).plan(replace(p, seq=rows, seq_kv=keys), s)
    # A shorter problem may need other kernels: no second pass, or fewer splits and no combine.
    return cut if [launch.name for launch in cut.launches] == [launch.name for launch in plan.launches] else plan


def _accumulators(launch: KernelLaunch, item: WorkItem) -> int:
    """fp32 values in registers of one CTA: the accumulators of each agent's products, one of each kind (S and O)."""
    shapes = _Shapes()
    run_agents(launch.agents(item.matrices(), item.parameters), shapes, BarrierState())
    return sum(m * n for _, m, n, _ in shapes.seen)


class _Shapes:
    """Notes the products' kinds by agent: shape, and whether B is transposed; every value is a stand-in."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int, int, bool]] = set()

    def perform(self, agent: int, op: Op) -> Any:
        if isinstance(op, Matmul):
            self.seen.add((agent, *op.shape[:2], op.transpose_b))
        return (None,) * op.results if isinstance(op, Vector) and op.results > 1 else None


def _memory_cycles(plan: Plan, gpu: GpuSpec) -> tuple[float, str]:
    """(cycles, level) of the memory level that takes longest for the whole plan."""
    cached = sum(tensor.size_bytes for tensor in plan.tensors) <= gpu.l2.size_bytes
    hbm_bytes = total(compulsory_bytes(plan) if cached else textbook(plan))
    l2 = total(sm_port_bytes(plan)) / gpu.l2_bytes_per_clk
    hbm = hbm_bytes / gpu.hbm_bytes_per_clk
    return (l2, "the L2") if l2 > hbm else (hbm, "the HBM")


def _kernel_cycles(launch: KernelLaunch, short: KernelLaunch, pairs: float, gpu: GpuSpec) -> tuple[float, str, int]:
    """(cycles, what takes them, resident CTAs) on the SM with the largest share of a kernel's work.

    `short` is the same kernel of the problem that was cut, which has `pairs` times fewer query-key pairs.
    """
    items = list(islice(_samples(short), SAMPLES))
    known = {item.shape_key(): item for item in items}
    pipes = {key: _pipes(short, item, gpu) for key, item in known.items()}
    sampled = [pipes[item.shape_key()] for item in items]
    scale = pairs * short.work_count / launch.work_count / len(sampled)
    mean = {name: scale * sum(p[name] for p in sampled) for name in sampled[0]}
    share = -(-launch.work_count // gpu.sm.count)
    resident = min(ctas_per_sm(gpu, launch.resources, launch.name), -(-launch.ctas // gpu.sm.count))
    mean["operations one after another"] /= min(resident, share)
    slowest = max(mean, key=lambda name: mean[name])
    return share * mean[slowest], slowest, resident


def _samples(launch: KernelLaunch) -> Iterator[WorkItem]:
    """Work items from all over a kernel: multiples of the golden ratio keep off any regular pattern."""
    for number in range(launch.work_count):
        yield from launch.work(int((number * 0.6180339887498949 + 0.5) % 1 * launch.work_count))


def _pipes(launch: KernelLaunch, item: WorkItem, gpu: GpuSpec) -> dict[str, float]:
    """Cycles that one work item keeps each part of an SM busy, and those of its longest agent alone."""
    table = ProgramTable(gpu)
    agents = table.ranges[table.program_of(launch, item)]
    steps = table.steps[: table.used]
    ops, costs = table.ops[steps], table.costs[steps]
    moved = ops[:, oc.RUNS] * ops[:, oc.RUN_BYTES]
    read, written = (float(np.sum(moved[ops[:, oc.CODE] == code])) for code in (oc.LOAD, oc.STORE))
    return {
        "tensor cores": float(costs[:, oc.TENSOR_CYCLES].sum()),
        "vector pipes": float(costs[:, oc.VECTOR_CYCLES].sum()),
        "shared memory": float(costs[:, oc.SHARED_CYCLES].sum()),
        "SM ports": max(read / gpu.sm.read_port_bytes_per_clk, written / gpu.sm.write_port_bytes_per_clk),
        "operations one after another": max(_alone(ops[slice(*rows)], costs[slice(*rows)]) for rows in agents),
    }


def _alone(ops: NDArray[np.int64], costs: NDArray[np.float64]) -> float:
    """Cycles of an agent's operations one after another; asynchronous products run under the rest."""
    product_row = ops[:, oc.CODE] == oc.MATMUL
    waits = ~product_row | (ops[:, oc.TOKEN] < 0)
    fetched = costs[product_row & waits, oc.SHARED_CYCLES].sum()
    chain = costs[waits][:, [oc.TENSOR_CYCLES, oc.VECTOR_CYCLES, oc.LATENCY_CYCLES]].sum()
    return max(float(fetched + chain), float(costs[~waits, oc.TENSOR_CYCLES].sum()))


def _reason(plan: Plan, cost: Cost, default: Cost | None, tried: int, keys: Sequence[str]) -> str:
    chosen = " ".join(f"{key}={getattr(plan.schedule, key)}" for key in keys)
    against = (
        "the default does not fit"
        if default is None
        else f"the default's {default.port_bytes / 1e6:,.0f} MB, {default.cycles / 1e3:,.0f} kcycles"
    )
    return (
        f"{plan.algorithm}: best of {tried} that fit: {chosen}; SM ports {cost.port_bytes / 1e6:,.0f} MB, "
        f"{cost.cycles / 1e3:,.0f} kcycles by {cost.bound}, {cost.resident} CTA per SM, against {against}"
    )
