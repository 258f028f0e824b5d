"""What the tests of `traces` share: random plans, the float64 reference, and streams of operations to compare."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from traces.algorithms import ALGORITHMS
from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.ops import Load, Matmul, Op, Reduce, Store, Vector
from traces.problem import KV_SCALES, AttentionProblem
from traces.quantise import dequantised_cache, quantised_cache
from traces.tensor import AnyView, Tile

DIMS = (32, 40, 64, 80, 128, 256)

CACHE_ONLY = {"kv_append"}
"""Algorithms that keep the KV cache and attend to nothing."""

ATTENTION = {name: module for name, module in ALGORITHMS.items() if name not in CACHE_ONLY}
"""Algorithms that compute attention or its gradients."""


@st.composite
def problems(
    draw: st.DrawFn, longest: int = 200, dims: tuple[int, ...] = DIMS, features: Collection[str] = ()
) -> AttentionProblem:
    """Ragged lengths both ways, MHA, GQA and MQA, both masks, both layouts, and some of `features`.

    With `lengths`, half of the batches are of unequal sequences, some of them empty; with `window`, some causal masks
    have one; with `dim_v`, a third of the heads have other columns of V than of K, in a format of their own; with
    `quantised_kv`, half of the caches have K, V or both in int8 or fp8.
    """
    kv_heads, group = draw(st.sampled_from(((1, 1), (2, 1), (1, 3), (2, 2), (3, 3), (1, 7))))
    causal, formats = draw(st.booleans()), ("fp16", "bf16", "fp32")
    lengths: dict[str, Any] = {"batch": draw(st.integers(1, 2))}
    lengths |= {name: draw(st.integers(1, longest)) for name in ("seq", "seq_kv")}
    if "lengths" in features and draw(st.booleans()):
        length = st.one_of(st.just(0), st.integers(1, longest), st.integers(1, longest))
        pairs = st.lists(st.tuples(length, length), min_size=1, max_size=4)
        queries, keys = zip(*draw(pairs.filter(lambda drawn: all(map(max, zip(*drawn, strict=True))))), strict=True)
        lengths = {"lengths": queries, "kv_lengths": keys}
    other_v = "dim_v" in features and draw(st.sampled_from((False, False, True)))
    dtype = draw(st.sampled_from(formats))
    stored: dict[str, Any] = {"v_dtype": draw(st.sampled_from(formats)) if other_v else ""}
    if "quantised_kv" in features and draw(st.booleans()):
        stored = draw(quantised_formats(dtype))
    return AttentionProblem(
        **stored,
        **lengths,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dim=draw(st.sampled_from(dims)),
        dim_v=draw(st.sampled_from(dims)) if other_v else 0,
        dtype=dtype,
        causal=causal,
        window=draw(st.integers(0, longest)) if causal and "window" in features else 0,
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )


@st.composite
def quantised_formats(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    """Fields of a problem with K, V or both in int8 or fp8."""
    k, v = draw(st.sampled_from((("int8", ""), ("fp8", ""), ("int8", "fp8"), ("fp8", dtype), (dtype, "int8"))))
    scale, outliers = draw(st.sampled_from(KV_SCALES)), draw(st.integers(0, 3)) if k != dtype else 0
    return {"kv_dtype": k, "v_dtype": v, "kv_scale": scale, "outlier_channels": outliers}


def hook(algorithm: str, name: str, default: Any) -> Any:
    """What the algorithm's own test module calls `name`, or `default`.

    `tests/traces/algorithms/test_<algorithm>.py` must have SCHEDULES, a strategy of schedule changes. It may have
    FEATURES, those of `traces.problem.FEATURES` that drawn problems may ask for; `problems_of(longest, dims)`, a
    strategy of problems; `inputs_of(plan, seed)`, input arrays by name; `expected_of(plan, inputs)`, output name →
    (value, bound); and REWRITTEN, names of tensors that are written more than once.
    """
    return getattr(import_module(f"tests.traces.algorithms.test_{algorithm}"), name, default)


@st.composite
def plans(draw: st.DrawFn, algorithm: str, longest: int = 200, dims: tuple[int, ...] = DIMS) -> Plan:
    """A random plan of one algorithm."""
    module = ALGORITHMS[algorithm]
    general = partial(problems, features=hook(algorithm, "FEATURES", ()))
    problem = draw(hook(algorithm, "problems_of", general)(longest, dims))
    return module.plan(problem, module.Schedule_().changed(draw(hook(algorithm, "SCHEDULES", None))))


def default_plan(algorithm: str, **problem: Any) -> Plan:
    """The plan of the default schedule on an H200."""
    module, shape = ALGORITHMS[algorithm], AttentionProblem(**problem)
    return module.plan(shape, module.default_schedule(shape, "wgmma", 132))


Arrays = dict[str, NDArray[np.float32]]


def random_inputs(plan: Plan, seed: int = 0) -> Arrays:
    """Inputs of a plan: normal numbers, unless the algorithm's test module knows better."""
    own = hook(plan.algorithm, "inputs_of", None)
    return normal_inputs(plan, seed) if own is None else own(plan, seed)  # type: ignore[no-any-return]


def normal_inputs(plan: Plan, seed: int) -> Arrays:
    """Normal numbers for every input tensor; of a quantised cache, its codes and scales."""
    generator = np.random.default_rng(seed)
    shapes = {name: plan.tensor(name) for name in plan.inputs}
    found = {n: generator.standard_normal((t.batch, t.heads, t.rows, t.cols), np.float32) for n, t in shapes.items()}
    return found | (quantised_cache(plan.problem, found["K"], found["V"]) if "K" in found else {})


def expected(plan: Plan, inputs: Arrays) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Outputs in float64 and how far fp32 arithmetic may be from them, by name."""
    own = hook(plan.algorithm, "expected_of", None)
    if own is not None:
        return own(plan, inputs)  # type: ignore[no-any-return]
    right = reference(plan.problem, inputs["Q"], *dequantised_cache(plan.problem, inputs))
    return {"O": (right.output, right.output_bound), "LSE": (right.lse, right.lse_bound)}


@dataclass(frozen=True)
class Reference:
    """Attention in float64, and how far fp32 arithmetic may be from it.

    Attributes:
        output: [batch, heads, rows, dim_v]; fully masked rows are 0, and so is padding.
        lse: [batch, heads, 1, rows]; -inf for fully masked rows and padding.
        output_bound, lse_bound: element-wise bounds on the error of a computation in fp32.
    """

    output: NDArray[np.float64]
    lse: NDArray[np.float64]
    output_bound: NDArray[np.float64]
    lse_bound: NDArray[np.float64]


def reference(problem: AttentionProblem, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> Reference:
    """Attention of one call, with sequences of unequal lengths either padded, [batch, heads, longest, dim], or packed,
    [1, heads, total, dim]; the answer is laid out as `q`.
    """
    shape = (*q.shape[:3], v.shape[3])
    output, output_bound = np.zeros(shape), np.zeros(shape)
    lse, lse_bound = np.full(shape[:3], -np.inf), np.zeros(shape[:3])
    for b in range(problem.batch):
        rows = sequence_rows(q, problem.lengths or (problem.seq,) * problem.batch, b)
        keys = sequence_rows(k, problem.kv_lengths or (problem.seq_kv,) * problem.batch, b)
        one = _one_sequence(problem, b, q[rows], k[keys], v[keys])
        output[rows], output_bound[rows], lse[rows], lse_bound[rows] = one
    return Reference(output, lse[:, :, None], output_bound, lse_bound[:, :, None])


def sequence_rows(x: NDArray[Any], lengths: tuple[int, ...], b: int) -> tuple[int, slice, slice]:
    """Where sequence `b` is in a tensor of queries or keys, which has a batch entry for each, or only one (packed)."""
    packed = len(x) < len(lengths)
    start = sum(lengths[:b]) if packed else 0
    return 0 if packed else b, slice(None), slice(start, start + lengths[b])


def _one_sequence(problem: AttentionProblem, b: int, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> Any:
    """(output, its bound, lse, its bound) of one sequence, with bounds from probabilistic rounding analysis.

    A sum of n products is off by about sqrt(n) u times the sum of their magnitudes at worst (Higham and Mary 2019,
    doi:10.1137/18M1226312; u = 2^-24). An error e of the scores of a row changes its weights by e relative, so its LSE
    by e and its O by e (P |V| + |O|). exp, the rescaling of earlier blocks and the two sums over keys add
    (sqrt(keys) + 8) u relative.
    """
    unit, rows, keys = 2.0**-24, q.shape[1], k.shape[1]
    q64, k64, v64 = q.astype(float), _per_query_head(problem, k), _per_query_head(problem, v)
    scores = q64 @ k64.swapaxes(1, 2) * problem.scale
    magnitudes = np.abs(q64) @ np.abs(k64).swapaxes(1, 2) * problem.scale
    scores = np.where(visible(rows, keys, problem.causal, problem.window), scores, -np.inf)
    top = scores.max(axis=2, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    sums = weights.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isfinite(top), top, 0) + np.log(sums)
    weights /= np.where(sums > 0, sums, 1)
    output = weights @ v64

    score_error = unit * (np.sqrt(problem.dim) + 2) * magnitudes.max(axis=2, keepdims=True, initial=0)
    sum_error = unit * (np.sqrt(keys) + 8)
    output_bound = (score_error + sum_error) * (weights @ np.abs(v64) + np.abs(output))
    lse_bound = score_error + sum_error + unit * np.abs(np.where(np.isfinite(lse), lse, 0))
    return output, output_bound, lse[:, :, 0], lse_bound[:, :, 0]


def visible(rows: int, keys: int, causal: bool, window: int) -> NDArray[np.bool_]:
    """Which keys each row sees: up to its diagonal, which ends in the last row's last key, and `window` of them."""
    past = np.arange(keys)[None, :] - np.arange(rows)[:, None] - (keys - rows)
    return (past <= 0) & ((past > -window) | (window == 0)) if causal else np.ones((rows, keys), bool)


def assert_within(found: NDArray[Any], expected: NDArray[np.float64], bound: NDArray[np.float64]) -> None:
    """Every element equals `expected` within its own bound; infinities must agree."""
    assert np.array_equal(np.isneginf(found), np.isneginf(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(np.isneginf(expected), 0, np.abs(found - expected))
    assert not np.isnan(error).any(), "NaN: something was read before it was there"
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert error[worst] <= bound[worst], f"element {worst} is {found[worst]}, not {expected[worst]} +- {bound[worst]}"


def _per_query_head(problem: AttentionProblem, x: NDArray[Any]) -> NDArray[np.float64]:
    return np.repeat(x.astype(float), problem.group, axis=0)


class Stream:
    """A driver that writes down every operation, with values as numbers and functions left out."""

    def __init__(self) -> None:
        self.ops: list[tuple[int, Op]] = []
        self.lines: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []

    def perform(self, agent: int, op: Op) -> Any:
        shown = [self._show(getattr(op, f.name)) for f in fields(op) if f.name != "function"]
        self.ops.append((agent, op))
        self.lines.append((agent, type(op).__name__, *shown))
        match op:
            case Load() | Matmul():
                return self._new()
            case Vector(results=results):
                return self._new() if results == 1 else tuple(self._new() for _ in range(results))
        return None

    def _new(self) -> object:
        value = object()
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return value

    def _show(self, value: Any) -> Any:
        if id(value) in self._numbers:
            return f"value {self._numbers[id(value)]}"
        if isinstance(value, tuple):
            return tuple(self._show(x) for x in value)
        return "constant" if isinstance(value, np.ndarray | str) else value


def stream(launch: KernelLaunch, item: WorkItem) -> Stream:
    """What one work item does."""
    driver = Stream()
    run_agents(launch.agents(item.matrices(), item.parameters), driver, BarrierState())
    return driver


def work_items(plan: Plan) -> Iterator[tuple[KernelLaunch, int, WorkItem]]:
    """Every (launch, CTA, work item) of a plan."""
    for launch in plan.launches:
        for cta in range(launch.work_count):
            for item in launch.work(cta):
                yield launch, cta, item


def accesses(plan: Plan) -> Iterator[tuple[Load | Store | Reduce, AnyView]]:
    """Every load, store and reduction of a plan and the view it falls in; programs of equal shape are run once."""
    known: dict[tuple[Any, ...], list[Load | Store | Reduce]] = {}
    for launch, _, item in work_items(plan):
        key = launch.name, item.shape_key()
        if key not in known:
            known[key] = [op for _, op in stream(launch, item).ops if isinstance(op, Load | Store | Reduce)]
        for op in known[key]:
            yield op, item.views[op.tile.matrix.slot]


def byte_addresses(tile: Tile, view: AnyView) -> NDArray[np.int64]:
    """Every byte that a tile covers, in order of its runs."""
    offset, runs, run_bytes, pitch = tile.span(view)
    starts = [view.at(offset + i * pitch) for i in range(runs if tile.size_bytes else 0)]
    return (np.array(starts, np.int64)[:, None] + np.arange(run_bytes)).ravel()
