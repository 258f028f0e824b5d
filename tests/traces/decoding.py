"""What the tests of the decoding algorithms share: problems of decoding, the cache of a paged problem, expectations."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.traces.problems import Arrays, normal_inputs, reference
from traces.launch import Plan
from traces.paging import block_table
from traces.problem import AttentionProblem


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
    return AttentionProblem(**shape, dtype=dtype, layout=layout)


def cache_inputs(plan: Plan, seed: int) -> Arrays:
    """Normal numbers; of a paged cache, NaN wherever no sequence has a token, and the table that leads past them."""
    inputs = normal_inputs(plan, seed)
    if "block_table" not in inputs:
        return inputs
    table = block_table(plan.problem, plan.schedule.seed)
    used = np.zeros((table.page_count, table.page_size), bool)
    for length, pages in zip(table.lengths, table.pages, strict=True):
        for i, page in enumerate(pages):
            used[page, : length - i * table.page_size] = True
    for name in ("K", "V", "KV"):
        if name in inputs:
            inputs[name] = np.where(used[:, None, :, None], inputs[name], np.float32(np.nan))
    return inputs | {"block_table": table.array()[None, None].astype(np.float32)}


def expected_outputs(plan: Plan, inputs: Arrays) -> dict[str, Any]:
    """O and LSE in float64 with their bounds, from K and V gathered by hand."""
    p = plan.problem
    k, v = (_rows(plan, inputs, name) for name in (("KV", "KV") if p.mla else ("K", "V")))
    right = reference(p, inputs["Q"], k, v[..., : p.dim_v])
    return {"O": (right.output, right.output_bound), "LSE": (right.lse, right.lse_bound)}


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
