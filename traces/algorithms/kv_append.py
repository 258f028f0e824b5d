"""Appending to the KV cache: new rows of K and V are quantised on write and stored behind those that are there.

While decoding there is one new row per sequence (`seq` 1, `seq_kv` the length of the cache with it); a prefill appends
`seq` of them. A scale per token is computed from the row. Scales per channel or head cannot change once there are
codes, so they are given, as is the choice of outlier channels (calibrated in advance, KVQuant section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traces.kv_tiles import Dequantisation, kv_bytes
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.quantise import quantise, scales_of, without_outliers
from traces.schedule import Schedule, require, require_multiple
from traces.sequences import key_rows, query_rows
from traces.tensor import Matrix, Tensor, TensorTable, View
from traces.traffic import Traffic, blocks, read_once

name = "kv_append"
summary = "new rows of K and V quantised and written to the cache"
paper = "Hooper et al. 2024, arXiv:2401.18079 (KVQuant), section 3"
order = 210
default_shape = {"seq": 1, "seq_kv": 4096}

SCALE_INSTRUCTIONS, CODE_INSTRUCTIONS = 2, 2
"""fp32 instructions per element: widen and take the largest magnitude; multiply by 1 / scale and convert."""


@dataclass(frozen=True, slots=True)
class KvAppendSchedule(Schedule):
    """How the new rows are shared out.

    Attributes:
        tile_kv: new rows per CTA, of one KV head.
    """

    tile_kv: int = 16

    def __post_init__(self) -> None:
        require_multiple("tile_kv", self.tile_kv, 1)


Schedule_ = KvAppendSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> KvAppendSchedule:
    """A few rows per CTA: enough CTAs for every SM, enough bytes in each to hide a load's latency."""
    return KvAppendSchedule()


def plan(problem: AttentionProblem, schedule: KvAppendSchedule) -> Plan:
    """Tensors and the single launch: a CTA per block of new rows, KV head and sequence."""
    p = problem
    p.require({"lengths", "dim_v", "quantised_kv"})
    for b in range(p.batch):
        require(p.rows(b) <= p.keys(b), f"seq {p.rows(b)} new rows do not fit a cache of seq_kv {p.keys(b)}")
    new_rows, cache_rows = query_rows(p), key_rows(p)
    table = TensorTable()
    new, cache = [], []
    for tensor, dim, stored in (("K", p.dim, p.kv_storage), ("V", p.dim_v, p.v_storage)):
        new.append(table.add(f"{tensor}_new", (new_rows.batch, p.kv_heads, new_rows.rows, dim), p.storage, p.layout))
        cache.append(table.add(tensor, (cache_rows.batch, p.kv_heads, cache_rows.rows, dim), stored, p.layout))
    beside = Dequantisation(table, p, cache_rows.batch, cache_rows.rows)
    per_head = blocks(p.seq, schedule.tile_kv)

    def work(cta: int) -> Sequence[WorkItem]:
        head_and_batch, block = divmod(cta, per_head)
        b, h = divmod(head_and_batch, p.kv_heads)
        row = block * schedule.tile_kv
        if row >= p.rows(b):
            return []
        rows = min(schedule.tile_kv, p.rows(b) - row)
        place = p.keys(b) - p.rows(b) + row

        def behind(tensor: Tensor) -> View:
            return cache_rows.view(tensor, b, h).window(place, rows)

        views = (*(new_rows.view(t, b, h).window(row, rows) for t in new), *map(behind, cache))
        return [WorkItem((*views, *beside.views(b, h, behind)), ())]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        of = {m.name: m for m in matrices}
        return append("K", of, p), append("V", of, p)

    # A warp each for K and V.
    shared = schedule.tile_kv * (p.dim + p.dim_v) * p.storage.element_bytes
    launch = KernelLaunch(name, p.batch * p.kv_heads * per_head, CtaResources(64, 64, shared), work, agents, warps=2)
    inputs = ("K_new", "V_new", *(n for n in beside.names if n in _given(p)))
    outputs = ("K", "V", *(n for n in beside.names if n not in _given(p)))
    return Plan(name, p, schedule, table.tensors, (launch,), inputs, outputs, "append")


def append(name: str, of: dict[str, Matrix], problem: AttentionProblem) -> Program:
    """A warp's work on K or V: quantise the new rows if the cache is quantised, and store them."""
    new, cache = of[f"{name}_new"], of[name]
    rows, elements = new.rows, new.rows * new.cols
    x = yield Load(new.tile(0, rows))
    yield Wait(x)
    if name == "K" and "K_outliers" in of:
        channels = yield Load(of["K_outlier_index"].tile(0, 1))
        yield Wait(channels)
        x, outliers = yield Vector(
            lambda x, index: without_outliers(x, index.astype(np.int64)),
            (x, channels),
            instructions=elements,
            results=2,
        )
        yield Store(of["K_outliers"].tile(0, rows), outliers)
    if problem.dequantises(name):
        scales = of[f"{name}_scale"].tile(0, of[f"{name}_scale"].rows)
        if problem.kv_scale == "token":
            scale = yield Vector(
                lambda x: scales_of(x, cache.dtype, "token", problem.storage),
                (x,),
                instructions=SCALE_INSTRUCTIONS * elements,
            )
            yield Store(scales, scale)
        else:
            scale = yield Load(scales)
            yield Wait(scale)
        x = yield Vector(
            lambda x, scale: quantise(x, scale, cache.dtype), (x, scale), instructions=CODE_INSTRUCTIONS * elements
        )
    yield Store(cache.tile(0, rows), x)


def textbook(plan: Plan) -> Traffic:
    """New rows and given scales read once; codes, and what is computed for each row, written once."""
    written = {name: (0, count) for name, (_, count) in sm_port(plan).items() if count}
    return read_once(plan, *plan.inputs) | written


def sm_port(plan: Plan) -> Traffic:
    """As `textbook`, but every CTA reads the scales and outlier channels that are given."""
    p, sequences = plan.problem, range(plan.problem.batch)
    rows = p.kv_heads * sum(p.rows(b) for b in sequences)
    ctas = p.kv_heads * sum(blocks(p.rows(b), plan.schedule.tile_kv) for b in sequences)
    traffic = read_once(plan, "K_new", "V_new")
    for name, moved in kv_bytes(plan.tensors, p, rows, ctas).items():
        traffic[name] = (moved, 0) if name in plan.inputs else (0, moved)
    return traffic


def _given(problem: AttentionProblem) -> set[str]:
    """What a new row is quantised with that does not depend on it."""
    return {"K_outlier_index"} | (set() if problem.kv_scale == "token" else {"K_scale", "V_scale"})
