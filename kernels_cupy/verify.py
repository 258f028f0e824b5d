"""Is what a kernel wrote attention? Its outputs against a float64 reference of the stored (rounded) inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels_cupy.arrays import decode, encode
from kernels_cupy.run import Session
from traces.launch import Plan
from traces.problem import AttentionProblem

Reference = Callable[[Any, AttentionProblem, Mapping[str, Any]], dict[str, Any]]
"""(NumPy or CuPy, problem, inputs of one head as float64 [rows, cols]) → outputs of the head, float64 [rows, cols]."""

ROW_CHUNK_BYTES = 256 << 20
"""Bytes of float64 scores held at a time."""


def forward_head(xp: Any, problem: AttentionProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """O and LSE of one query head; a row without visible keys has O = 0 and LSE = -inf."""
    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    rows = max(1, ROW_CHUNK_BYTES // (8 * len(k)))
    output, lse = xp.empty((len(q), v.shape[1])), xp.empty((1, len(q)))
    for start in range(0, len(q), rows):
        end = min(len(q), start + rows)
        scores = problem.scale * (q[start:end] @ k.T)
        if problem.causal:
            past_diagonal = xp.arange(len(k))[None, :] - xp.arange(start, end)[:, None] - problem.diagonal
            visible = past_diagonal <= 0
            if problem.window:
                visible &= past_diagonal > -problem.window
            scores = xp.where(visible, scores, -xp.inf)
        maximum = scores.max(axis=1, keepdims=True)
        maximum = xp.where(xp.isfinite(maximum), maximum, 0)
        weights = xp.exp(scores - maximum)
        total = weights.sum(axis=1, keepdims=True)
        output[start:end] = (weights @ v) / xp.where(total > 0, total, 1)
        empty = total[:, 0] == 0
        lse[0, start:end] = xp.where(empty, -xp.inf, maximum[:, 0] + xp.log(xp.where(empty, 1, total[:, 0])))
    return {"O": output, "LSE": lse}


REFERENCES: dict[tuple[str, ...], Reference] = {("O",): forward_head, ("O", "LSE"): forward_head}
"""Outputs of a plan → how to compute them for one query head."""


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
    squares = {name: [0.0, 0.0] for name in plan.outputs}
    for batch in range(p.batch):
        for head in range(p.heads):
            one = {name: _on(xp, x[batch, head * x.shape[1] // p.heads]) for name, x in inputs.items()}
            for name, expected in reference(xp, p, one).items():
                if name in outputs:
                    got = _on(xp, outputs[name][batch, head])
                    difference, norm = _squares(xp, got, expected)
                    squares[name][0] += difference
                    squares[name][1] += norm
    return {name: _relative(*pair) for name, pair in squares.items()}


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
