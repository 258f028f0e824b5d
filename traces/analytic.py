"""Closed forms: how many bytes an algorithm must, should, and does move, by arithmetic on problem and schedule.

Three answers per plan, each `{tensor: (bytes read, bytes written)}`:

- `textbook`: what the papers' formulas count as HBM traffic, with no cache.
- `compulsory_bytes`: every input read once, every output written once, every intermediate once each way.
- `sm_port_bytes`: what crosses the ports of all SMs, tile by tile; the simulator must agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from traces.launch import Plan

Traffic = dict[str, tuple[int, int]]
"""Tensor name → (bytes read, bytes written)."""

_Form = TypeVar("_Form")


def analytic(plan: Plan) -> dict[str, float]:
    """HBM bytes of the textbook form, flops, and flops per byte: the JSON contract's `analytic`, machine side apart."""
    hbm_bytes = total(textbook(plan))
    flops = plan.problem.flops()
    return {"hbm_bytes": hbm_bytes, "flops": flops, "arithmetic_intensity": flops / hbm_bytes}


def total(traffic: Traffic) -> int:
    """Bytes read and written, over all tensors."""
    return sum(read + written for read, written in traffic.values())


def textbook(plan: Plan) -> Traffic:
    """The formulas of the literature, whatever mask and cache do.

    naive: 8N^2 + 6Nd bytes per fp16 head: S and P written and read (4 x 2N^2), Q, K and V read (3 x 2Nd); the write
    of O is left out. flash: 8Nd bytes per fp16 head: Q, K and V read, O written; LSE is left out. Here N^2 is
    seq x seq_kv, Q and O count `heads`, K and V count `kv_heads`, and each tensor has its own bytes per element.
    """
    return _form(_TEXTBOOK, plan)(plan)


def compulsory_bytes(plan: Plan) -> Traffic:
    """Least traffic with the plan's tensors in memory: inputs in, outputs out, intermediates out and in again."""
    return {
        t.name: (0 if t.name in plan.outputs else t.size_bytes, 0 if t.name in plan.inputs else t.size_bytes)
        for t in plan.tensors
    }


def sm_port_bytes(plan: Plan) -> Traffic:
    """Bytes that all tiles of the plan move through SM ports. A multicast tile counts whole in each SM it reaches."""
    return _form(_SM_PORT, plan)(plan)


def _form(forms: dict[str, _Form], plan: Plan) -> _Form:
    if plan.algorithm not in forms:
        raise ValueError(f"no closed form is known for algorithm {plan.algorithm!r}, only for {', '.join(forms)}")
    return forms[plan.algorithm]


def _sizes(plan: Plan) -> dict[str, int]:
    return {t.name: t.size_bytes for t in plan.tensors}


def _naive_textbook(plan: Plan) -> Traffic:
    size = _sizes(plan)
    reads = {name: (size[name], 0) for name in ("Q", "K", "V")}
    return reads | {name: (size[name], size[name]) for name in ("S", "P")}


def _flash_textbook(plan: Plan) -> Traffic:
    size = _sizes(plan)
    return {name: (size[name], 0) for name in ("Q", "K", "V")} | {"O": (0, size["O"])}


def _naive_sm_port(plan: Plan) -> Traffic:
    """Both GEMMs re-read A per column of output tiles and B per row of them and query head; masks skip nothing."""
    p, s, size = plan.problem, plan.schedule, _sizes(plan)
    return {
        "Q": (size["Q"] * _blocks(p.seq_kv, s.tile_kv), 0),
        "K": (size["K"] * p.group * _blocks(p.seq, s.tile_q), 0),
        "V": (size["V"] * p.group * _blocks(p.seq, s.pv_tile_q), 0),
        "S": (size["S"], size["S"]),
        "P": (size["P"] * _blocks(p.dim, s.pv_tile_d), size["P"]),
        "O": (0, size["O"]),
    }


def _flash_sm_port(plan: Plan) -> Traffic:
    """Every query block reads the keys and values that its last row can see."""
    p, tile_q, size = plan.problem, plan.schedule.tile_q, _sizes(plan)
    last_rows = (min(row + tile_q, p.seq) - 1 for row in range(0, p.seq, tile_q))
    keys = p.batch * p.heads * sum(p.visible_keys(row) for row in last_rows)
    read = keys * p.dim * p.kv_storage.element_bytes
    return {"Q": (size["Q"], 0), "K": (read, 0), "V": (read, 0), "O": (0, size["O"]), "LSE": (0, size["LSE"])}


def _blocks(length: int, tile: int) -> int:
    return -(-length // tile)


_TEXTBOOK: dict[str, Callable[[Plan], Traffic]] = {
    "naive": _naive_textbook,
    "flash2": _flash_textbook,
    "flash3": _flash_textbook,
}
_SM_PORT: dict[str, Callable[[Plan], Traffic]] = {
    "naive": _naive_sm_port,
    "flash2": _flash_sm_port,
    "flash3": _flash_sm_port,
}
