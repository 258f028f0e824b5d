"""What the tests of backward passes share: consistent inputs, and float64 gradients with error bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.traces.problems import Arrays, normal_inputs, reference, visible
from traces.launch import Plan
from traces.problem import AttentionProblem

Float64 = NDArray[np.float64]
UNIT = 2.0**-24


def weights(p: AttentionProblem, q: NDArray[Any], k: NDArray[Any]) -> Float64:
    """P in float64, [batch, heads, seq, seq_kv]; rows without a visible key are 0."""
    scores = q.astype(float) @ np.repeat(k.astype(float), p.group, axis=1).swapaxes(2, 3) * p.scale
    scores = np.where(visible(p.seq, p.seq_kv, p.causal, 0), scores, -np.inf)
    top = scores.max(axis=3, keepdims=True)
    found = np.exp(scores - np.where(np.isfinite(top), top, 0))
    sums = found.sum(axis=3, keepdims=True)
    return np.asarray(found / np.where(sums > 0, sums, 1))


def backward_inputs(plan: Plan, seed: int) -> Arrays:
    """Normal Q, K, V and dO; O, LSE and P as the forward pass would leave them."""
    inputs = normal_inputs(plan, seed)
    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    if "P" in inputs:
        inputs["P"] = weights(plan.problem, q, k).astype(np.float32)
    if "O" in inputs:
        right = reference(plan.problem, q, k, v)
        inputs["O"], inputs["LSE"] = right.output.astype(np.float32), right.lse.astype(np.float32)
    return inputs


def gradients(p: AttentionProblem, inputs: Arrays) -> dict[str, tuple[Float64, Float64]]:
    """dQ, dK, dV of one call in float64, and how far fp32 arithmetic may be from them.

    Bounds from probabilistic rounding analysis, as in `problems.reference`: an error e of a row's scores or LSE changes
    its P by e relative; a sum of n products is off by sqrt(n) u times the sum of their magnitudes.
    """
    q, do = (inputs[name].astype(float) for name in ("Q", "dO"))
    k, v = (np.repeat(inputs[name].astype(float), p.group, axis=1) for name in ("K", "V"))
    probs = weights(p, inputs["Q"], inputs["K"])
    dp = do @ v.swapaxes(2, 3)
    d = (dp * probs).sum(axis=3, keepdims=True)
    ds = probs * (dp - d)

    magnitudes = np.abs(q) @ np.abs(k).swapaxes(2, 3) * p.scale
    largest = magnitudes.max(axis=3, keepdims=True)
    many, wide, tall = (np.sqrt(n) for n in (p.seq_kv, max(p.dim, p.dim_v), p.group * p.seq))
    p_error = UNIT * ((wide + 4) * largest + many + 12)  # relative; the LSE is no larger than scores and log of keys
    dp_magnitude = np.abs(do) @ np.abs(v).swapaxes(2, 3)
    # D from dO and O, whose terms are no larger than those of P |dP|, or from dP and P.
    d_magnitude = (probs * dp_magnitude).sum(axis=3, keepdims=True)
    d_error = (UNIT * (2 * wide + many + 8) + p_error) * d_magnitude
    ds_error = probs * (UNIT * (wide + 4) * dp_magnitude + d_error + (p_error + 4 * UNIT) * (np.abs(dp) + np.abs(d)))

    def grouped(x: Float64) -> Float64:
        return x.reshape(p.batch, p.kv_heads, p.group, *x.shape[2:]).sum(axis=2)

    dq_bound = (ds_error + UNIT * (many + 8) * np.abs(ds)) @ np.abs(k) * p.scale
    dk_bound = grouped((ds_error + UNIT * (tall + 8) * np.abs(ds)).swapaxes(2, 3) @ np.abs(q) * p.scale)
    dv_bound = grouped(((p_error + UNIT * (tall + 8)) * probs).swapaxes(2, 3) @ np.abs(do))
    return {
        "dQ": (ds @ k * p.scale, dq_bound),
        "dK": (grouped(ds.swapaxes(2, 3) @ q * p.scale), dk_bound),
        "dV": (grouped(probs.swapaxes(2, 3) @ do), dv_bound),
    }


def expected_gradients(plan: Plan, inputs: Arrays) -> dict[str, tuple[Float64, Float64]]:
    """`expected_of` of the backward algorithms."""
    return gradients(plan.problem, inputs)
