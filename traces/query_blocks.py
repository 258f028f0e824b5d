"""Blocks of query rows as work items: what the FlashAttention forwards share.

Each item binds a block of Q, O and LSE rows, and all of the head's K and V.
"""

from __future__ import annotations

from traces.dtypes import DTYPES
from traces.launch import Plan, WorkItem
from traces.problem import AttentionProblem
from traces.softmax import NO_MASK
from traces.tensor import Tensor, TensorTable
from traces.traffic import Traffic, read_once, written_once

CTA_ORDERS = ("m_fastest", "head_fastest", "longest_first")


class QueryBlocks:
    """The tensors Q, K, V, O, LSE of a problem, and its query blocks in a CTA order.

    Args:
        problem: what is computed.
        tile_q: query rows per block.
        cta_order: one of `CTA_ORDERS`.
        kv_order: one of `traces.schedule.KV_ORDERS`.
    """

    def __init__(self, problem: AttentionProblem, tile_q: int, cta_order: str, kv_order: str) -> None:
        p = self._problem = problem
        self._tile_q, self._cta_order, self._kv_order = tile_q, cta_order, kv_order
        self._per_head = -(-p.seq // tile_q)
        table = TensorTable()
        self._q = table.add("Q", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
        self._k = table.add("K", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
        self._v = table.add("V", (p.batch, p.kv_heads, p.seq_kv, p.dim), p.kv_storage, p.layout)
        self._o = table.add("O", (p.batch, p.heads, p.seq, p.dim), p.storage, p.layout)
        self._lse = table.add("LSE", (p.batch, p.heads, 1, p.seq), DTYPES["fp32"])
        self.tensors: tuple[Tensor, ...] = table.tensors

    def __len__(self) -> int:
        return self._problem.batch * self._problem.heads * self._per_head

    def item(self, number: int) -> WorkItem:
        """Block `number`: views (Q, K, V, O, LSE), parameters (visible keys, diagonal, whether KV goes backward)."""
        p, tile_q = self._problem, self._tile_q
        b, h, block = cta_position(number, p.batch, p.heads, self._per_head, self._cta_order)
        row = block * tile_q
        views = (
            self._q.view(b, h).window(row, tile_q),
            self._k.view(b, h // p.group),
            self._v.view(b, h // p.group),
            self._o.view(b, h).window(row, tile_q),
            self._lse.view(b, h).window(0, 1, row, tile_q),
        )
        return WorkItem(views, block_parameters(p, row, min(row + tile_q, p.seq), block, self._kv_order))


def cta_position(cta: int, batch: int, heads: int, q_blocks: int, order: str) -> tuple[int, int, int]:
    """(batch, head, query block) of CTA `cta` under a CTA order."""
    if order == "m_fastest":
        head_and_batch, block = divmod(cta, q_blocks)
        h, b = divmod(head_and_batch, batch)
        return b, h, block
    block, rest = divmod(cta, batch * heads)
    b, h = divmod(rest, heads)
    return b, h, q_blocks - 1 - block if order == "longest_first" else block


def block_parameters(p: AttentionProblem, row: int, last_row: int, block: int, kv_order: str) -> tuple[int, int, int]:
    """(visible keys, diagonal, whether KV blocks go backward) of the query rows [row, last_row)."""
    visible = p.visible_keys(last_row - 1)
    diagonal = row + p.diagonal if p.causal else NO_MASK
    backward = kv_order == "backward" or (kv_order == "sawtooth" and block % 2 == 1)
    return visible, diagonal, int(backward)


def query_block_bytes(plan: Plan, tile_q: int) -> Traffic:
    """SM-port bytes of blocks of query rows: each reads the keys and values up to the last that its rows can see."""
    p = plan.problem
    last_rows = (min(row + tile_q, p.seq) - 1 for row in range(0, p.seq, tile_q))
    keys = p.batch * p.heads * sum(p.visible_keys(row) for row in last_rows)
    k_bytes, v_bytes = p.dim * p.kv_storage.element_bytes, p.dim * p.v_storage.element_bytes
    rows = {"K": (keys * k_bytes, 0), "V": (keys * v_bytes, 0)}
    return read_once(plan, "Q") | rows | written_once(plan, "O", "LSE")
