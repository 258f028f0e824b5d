"""Is what a kernel wrote attention? Its outputs against a float64 reference of the stored (rounded) inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels_cupy.arrays import BLOCK_TABLE, CACHE, OUTLIER_INDEX, SCALES, decode, encode, random_inputs
from kernels_cupy.kernel import starts
from kernels_cupy.run import Session
from traces.launch import Plan
from traces.problem import AttentionProblem

Reference = Callable[[Any, AttentionProblem, Mapping[str, Any]], dict[str, Any]]
"""(NumPy or CuPy, problem, inputs of one KV head as float64 [heads, rows, cols]) → its outputs, alike."""

ROW_CHUNK_BYTES = 256 << 20
"""Bytes of float64 scores held at a time."""


def forward_head(xp: Any, problem: AttentionProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """O and LSE of the query heads of one KV head; a row without visible keys has O = 0 and LSE = -inf."""
    k, v = inputs["K"][0], inputs["V"][0]
    results = [_attention(xp, problem, q, k, v) for q in inputs["Q"]]
    return {name: xp.stack([one[name] for one in results]) for name in ("O", "LSE")}


def _attention(xp: Any, problem: AttentionProblem, q: Any, k: Any, v: Any) -> dict[str, Any]:
    rows = max(1, ROW_CHUNK_BYTES // (8 * max(1, len(k))))
    output, lse = xp.empty((len(q), v.shape[1])), xp.empty((1, len(q)))
    for start in range(0, len(q), rows):
        end = min(len(q), start + rows)
        scores = _scores(xp, problem, q, k, start, end)
        maximum = _finite_maximum(xp, scores)
        weights = xp.exp(scores - maximum)
        total = weights.sum(axis=1, keepdims=True)
        output[start:end] = (weights @ v) / xp.where(total > 0, total, 1)
        empty = total[:, 0] == 0
        lse[0, start:end] = xp.where(empty, -xp.inf, maximum[:, 0] + xp.log(xp.where(empty, 1, total[:, 0])))
    return {"O": output, "LSE": lse}


def _scores(xp: Any, problem: AttentionProblem, q: Any, k: Any, start: int, end: int) -> Any:
    """Scaled scores of rows [start, end), -inf where the mask hides a key."""
    scores = problem.scale * (q[start:end] @ k.T)
    if not problem.causal:
        return scores
    past_diagonal = xp.arange(len(k))[None, :] - xp.arange(start, end)[:, None] - (len(k) - len(q))
    visible = past_diagonal <= 0
    if problem.window:
        visible &= past_diagonal > -problem.window
    return xp.where(visible, scores, -xp.inf)


def _finite_maximum(xp: Any, scores: Any) -> Any:
    """Largest score of each row, [rows, 1]; 0 where a row sees no key."""
    if not scores.shape[1]:
        return xp.zeros((len(scores), 1))
    maximum = scores.max(axis=1, keepdims=True)
    return xp.where(xp.isfinite(maximum), maximum, 0)


def backward_head(xp: Any, problem: AttentionProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """dQ of the query heads of one KV head, and its dK and dV."""
    k, v = inputs["K"][0], inputs["V"][0]
    dk, dv, dqs = xp.zeros(k.shape), xp.zeros(v.shape), []
    rows = max(1, ROW_CHUNK_BYTES // (8 * max(1, len(k))))
    for q, do in zip(inputs["Q"], inputs["dO"], strict=True):
        dq = xp.zeros(q.shape)
        for start in range(0, len(q), rows):
            end = min(len(q), start + rows)
            scores = _scores(xp, problem, q, k, start, end)
            weights = xp.exp(scores - _finite_maximum(xp, scores))
            total = weights.sum(axis=1, keepdims=True)
            weights /= xp.where(total > 0, total, 1)
            dp = do[start:end] @ v.T
            ds = problem.scale * weights * (dp - (weights * dp).sum(axis=1, keepdims=True))
            dq[start:end] = ds @ k
            dk += ds.T @ q[start:end]
            dv += weights.T @ do[start:end]
        dqs.append(dq)
    return {"dQ": xp.stack(dqs), "dK": dk[None], "dV": dv[None]}


REFERENCES: dict[tuple[str, ...], Reference] = {
    ("O",): forward_head,
    ("O", "LSE"): forward_head,
    ("dQ", "dK", "dV"): backward_head,
}
"""Outputs of a plan → how to compute them for one KV head."""

PER_KEY = ("K", "V", "KV", "K_outliers", "dK", "dV")
"""Tensors with a row per key; the others have one per query row."""


def consistent_inputs(plan: Plan, seed: int = 0) -> dict[str, Any]:
    """Random values for the plan's inputs; where O and LSE are among them, those of a forward pass over the others."""
    inputs: dict[str, Any] = dict(random_inputs(plan, seed))
    if "O" not in inputs:
        return inputs
    p, xp = plan.problem, _array_module()
    stored = {n: decode(plan.tensor(n), encode(plan.tensor(n), inputs[n])) for n in ("Q", "K", "V")}
    for sequence in range(p.batch):
        for head in range(p.kv_heads):
            one = {name: _on(xp, _part(p, name, x, sequence, head)) for name, x in stored.items()}
            for name, right in forward_head(xp, p, one).items():
                if name in inputs:
                    part = _part(p, name, inputs[name], sequence, head)
                    part[...] = right.get() if hasattr(right, "get") else right
    return inputs


def errors(session: Session, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Relative error of every output of `session`'s last run: ‖out − reference‖ / ‖reference‖ over the tensor.

    NaN anywhere makes it infinite, and so does an infinity where the reference has none, or the reverse.
    """
    stored = {
        t.name: decode(t, encode(t, inputs[t.name])).astype(np.float32, copy=False)
        for t in session.plan.tensors
        if t.name in session.plan.inputs
    }
    return compare(session.plan, stored, session.output, _array_module())


def compare(plan: Plan, inputs: Mapping[str, Any], output: Callable[[str], Any], xp: Any = np) -> dict[str, float]:
    """As `errors`, for `output(name)` float32 [batch, heads, rows, cols] wherever it comes from."""
    reference = REFERENCES[plan.outputs]
    p, outputs = plan.problem, {name: output(name) for name in plan.outputs}
    squares = {name: [_padding_squares(xp, p, x) if name == "O" else 0.0, 0.0] for name, x in outputs.items()}
    for sequence in range(p.batch):
        for head in range(p.kv_heads):
            one = _inputs(xp, p, inputs, sequence, head)
            for name, right in reference(xp, p, one).items():
                if name in outputs:
                    got = _on(xp, _part(p, name, outputs[name], sequence, head))
                    difference, norm = _squares(xp, got, right)
                    squares[name][0] += difference
                    squares[name][1] += norm
    return {name: _relative(*pair) for name, pair in squares.items()}


def _inputs(xp: Any, p: AttentionProblem, inputs: Mapping[str, Any], sequence: int, head: int) -> dict[str, Any]:
    """Each input's part for one sequence and KV head in float64: keys of a paged cache gathered through its block
    table, codes multiplied with their scales, outliers in their channels, K and V out of a latent.
    """
    found: dict[str, Any] = {}
    for name, x in inputs.items():
        per_key = name in CACHE or (name in SCALES and p.kv_scale == "token")
        if name == BLOCK_TABLE:
            continue
        if per_key and BLOCK_TABLE in inputs:
            pages = inputs[BLOCK_TABLE][0, 0, sequence].astype(np.int64)[: -(-p.keys(sequence) // p.page_size)]
            part = x[pages, head].reshape(1, -1, x.shape[3])[:, : p.keys(sequence)]
        elif name == OUTLIER_INDEX:
            part = x[0, head : head + 1]
        elif name in SCALES and not per_key:
            part = x[sequence, head : head + 1]
        else:
            part = _part(p, name, x, sequence, head)
        found[name] = _on(xp, part)
    for name in set(found) & set(SCALES):
        found[name.removesuffix("_scale")] = found[name.removesuffix("_scale")] * found.pop(name)
    if OUTLIER_INDEX in found:
        channels = found.pop(OUTLIER_INDEX).astype(xp.int64).ravel()
        found["K"][..., channels] = found.pop("K_outliers")
    if "KV" in found:
        found["K"] = found.pop("KV")
        found["V"] = found["K"][..., : p.dim_v]
    return found


def _part(p: AttentionProblem, name: str, x: Any, sequence: int, head: int) -> Any:
    """[heads, rows, cols] of one sequence that belong to a KV head.

    Sequences of unequal lengths are packed, or (with a batch entry each) padded; their padding is left out.
    """
    heads = x.shape[1] // p.kv_heads
    packed = len(x) < p.batch
    of_head = x[0 if packed else sequence, head * heads : (head + 1) * heads]
    if not p.lengths:
        return of_head
    lengths = p.kv_lengths if name in PER_KEY or name in SCALES else p.lengths
    first = starts(lengths)[sequence] if packed else 0
    rows = slice(first, first + lengths[sequence])
    return of_head[..., rows] if name == "LSE" else of_head[:, rows]


def tolerance(plan: Plan) -> float:
    """Largest relative error that passes: four rounding units of the storage format (fp16: 0.002, bf16: 0.016).

    Scores and probabilities, each stored or fed to the tensor cores in that format, and the output add up to fewer.
    """
    return 4 * 2.0 ** -(plan.problem.storage.mantissa_bits + 1)


def _on(xp: Any, array: Any) -> Any:
    """`array` as float64 of NumPy or CuPy, wherever it lies."""
    if xp is np and hasattr(array, "get"):
        array = array.get()
    return xp.asarray(array).astype(xp.float64)


def _squares(xp: Any, got: Any, expected: Any) -> tuple[float, float]:
    finite = xp.isfinite(expected)
    same_infinities = bool(xp.all(xp.where(finite, xp.isfinite(got), got == expected)))
    norm = float(xp.square(xp.where(finite, expected, 0)).sum())
    if not same_infinities:
        return float("inf"), norm
    return float(xp.square(xp.where(finite, got - xp.where(finite, expected, 0), 0)).sum()), norm


def _padding_squares(xp: Any, p: AttentionProblem, output: Any) -> float:
    """Squared error of the padding of a padded batch's output, which is zeros; 0 where there is none."""
    if len(output) != len(p.lengths):
        return 0.0
    padding = (_on(xp, output[sequence, :, rows:]) for sequence, rows in enumerate(p.lengths))
    return sum(_squares(xp, x, xp.zeros(x.shape))[0] for x in padding)


def _relative(difference: float, norm: float) -> float:
    if difference == 0:
        return 0.0
    return float(np.sqrt(difference / norm)) if norm else float("inf")


def _array_module() -> Any:
    """CuPy if it can multiply matrices, which takes cuBLAS; else NumPy on the host."""
    from kernels_cupy.toolkit import cupy_module

    cupy = cupy_module()
    try:
        cupy.ones((2, 2)) @ cupy.ones((2, 2))
    except (ImportError, RuntimeError, OSError):
        return np
    return cupy
