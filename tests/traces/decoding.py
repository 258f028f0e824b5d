"""What the tests of the decoding algorithms share: problems of decoding, the cache of a paged problem, expectations."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.traces.problems import Arrays, normal_inputs, quantised_formats, reference
from traces.launch import Plan
from traces.paging import block_table
from traces.problem import AttentionProblem
from traces.quantise import dequantised_cache


@st.composite
def decode_problems(draw: st.DrawFn, longest: int, dims: tuple[int, ...], paged: bool = False) -> AttentionProblem:
    """Few query rows; groups of 1 to 8, 5 and 7 among them; unequal contexts, some empty; windows; dim_v; MLA."""
    kv_heads, group = draw(st.sampled_from(((1, 1), (2, 1), (1, 3), (2, 2), (1, 5), (1, 7), (2, 7), (1, 8))))
    shape: dict[str, Any] = {"heads": kv_heads * group, "kv_heads": kv_heads, "dim": draw(st.sampled_from(dims))}
    length = st.one_of(st.integers(1, longest), st.integers(1, longest), st.just(0))
    if draw(st.booleans()):
        contexts = draw(st.lists(length, min_size=1, max_size=4).filter(any))
        shape |= {"kv_lengths": tuple(contexts), "seq": draw(st.integers(1, 9))}
        if draw(st.booleans()):
            shape["lengths"] = tuple(draw(st.lists(st.integers(0, 9), min_size=len(contexts), max_size=len(contexts))))
            shape["lengths"] = shape["lengths"] if any(shape["lengths"]) else ()
    else:
        shape |= {
            "batch": draw(st.integers(1, 3)),
            "seq": draw(st.integers(1, 16)),
            "seq_kv": draw(st.integers(1, longest)),
        }
    if draw(st.sampled_from((False, False, True))):
        shape |= {"dim_v": draw(st.sampled_from(dims))}
    if draw(st.sampled_from((False, False, False, True))):
        shape |= {"mla": True, "kv_heads": 1, "dim_v": draw(st.integers(8, shape["dim"]))}
    if draw(st.booleans()):
        shape |= {"causal": True, "window": draw(st.sampled_from((0, 0, 1, 20, 100)))}
    if paged:
        shape["page_size"] = draw(st.sampled_from((1, 8, 16, 24, 64, 256)))
        shape["prefix"] = draw(st.integers(0, min(shape.get("kv_lengths", (shape.get("seq_kv", 0),)))))
    dtype, layout = draw(st.sampled_from(("fp16", "bf16", "fp32"))), draw(st.sampled_from(("bhsd", "bshd")))
    if not shape.get("mla") and draw(st.booleans()):
        shape |= draw(quantised_formats(dtype))
    if shape.get("prefix"):
        shape["kv_scale"] = "token"  # a page that sequences share has one scale for each of its tokens
    return AttentionProblem(**shape, dtype=dtype, layout=layout)


def cache_inputs(plan: Plan, seed: int) -> Arrays:
    """Normal numbers; of a paged cache, NaN wherever no sequence has a token, and the table that leads past them."""
    if "block_table" not in plan.inputs:
        return normal_inputs(plan, seed)
    inputs = _paged_inputs(plan, seed)
    table = block_table(plan.problem, plan.schedule.seed)
    used = np.zeros((table.page_count, table.page_size), bool)
    for length, pages in zip(table.lengths, table.pages, strict=True):
        for i, page in enumerate(pages):
            used[page, : length - i * table.page_size] = True
    for name in _by_token(plan):
        inputs[name] = np.where(used[:, None, :, None], inputs[name], np.float32(np.nan))
    return inputs | {"block_table": table.array()[None, None].astype(np.float32)}


def expected_outputs(plan: Plan, inputs: Arrays) -> dict[str, Any]:
    """O and LSE in float64 with their bounds, from K and V gathered by hand."""
    p = plan.problem
    if p.mla:
        k = v = _rows(plan, inputs, "KV")
    elif "block_table" in inputs:
        k, v = (_dequantised(plan, inputs, name) for name in "KV")
    else:
        k, v = dequantised_cache(p, inputs)
    right = reference(p, inputs["Q"], k, v[..., : p.dim_v])
    return {"O": (right.output, right.output_bound), "LSE": (right.lse, right.lse_bound)}


def _by_token(plan: Plan) -> list[str]:
    """Inputs of a paged plan that have a row for every token."""
    per_token = {"K", "V", "KV", "K_outliers"} | ({"K_scale", "V_scale"} if plan.problem.kv_scale == "token" else set())
    return [name for name in plan.inputs if name in per_token]


def _paged_inputs(plan: Plan, seed: int) -> Arrays:
    """Normal numbers, codes that are numbers of their format, scales that are positive, and outliers of all heads."""
    p, generator = plan.problem, np.random.default_rng(seed)
    found: Arrays = {}
    for t in (plan.tensor(name) for name in plan.inputs):
        x = generator.standard_normal((t.batch, t.heads, t.rows, t.cols), np.float32)
        if t.name.endswith("_scale"):
            x = p.storage.round(np.abs(x) + np.float32(0.5)) / np.float32(64)
        elif t.name == "K_outlier_index":
            x = np.sort(generator.permuted(np.tile(np.arange(p.dim), (t.heads, 1)), axis=1)[:, : t.cols])[None, :, None]
        elif t.dtype.quantised:
            x = t.dtype.round(32 * x)
        found[t.name] = x.astype(np.float32)
    return found


def _dequantised(plan: Plan, inputs: Arrays, name: str) -> Any:
    """[batch, kv_heads, tokens, dim] of a paged K or V, from the definition."""
    p, x = plan.problem, _rows(plan, inputs, name)
    if f"{name}_scale" in inputs:
        scale = _rows(plan, inputs, f"{name}_scale") if p.kv_scale == "token" else inputs[f"{name}_scale"]
        x = p.storage.round(x * scale)
    if name == "K" and "K_outliers" in inputs:
        outliers = _rows(plan, inputs, "K_outliers")
        for head in range(p.kv_heads):
            x[:, head][..., inputs["K_outlier_index"][0, head, 0].astype(int)] = outliers[:, head]
    return x


def _rows(plan: Plan, inputs: Arrays, name: str) -> Any:
    """[batch, kv_heads, tokens, dim], padded; pages are found through the block table that the kernel is given."""
    if "block_table" not in inputs:
        return inputs[name]
    p, pages = plan.problem, inputs[name]
    rows = np.full((p.batch, p.kv_heads, p.seq_kv, pages.shape[3]), np.nan, np.float32)
    for b in range(p.batch):
        for token in range(p.keys(b)):
            page = int(inputs["block_table"][0, 0, b, token // p.page_size])
            rows[b, :, token] = pages[page, :, token % p.page_size]
    return rows
