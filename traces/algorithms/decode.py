"""Decoding with one CTA per query head, as in the first decoding kernels: simple, and no head waits for another.

Each query head reads the keys and values of its KV head, so with grouped queries those cross the SM ports once per
query head, though HBM only once as long as the heads of a group keep pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.decode_programs import decode_launch
from traces.decoding import FEATURES, DecodeBlocks, DecodeTiles, keys_per_step
from traces.kv_cache import ContiguousCache, cache_textbook
from traces.launch import Plan, WorkItem
from traces.problem import AttentionProblem
from traces.softmax import finish
from traces.tensor import TensorTable
from traces.traffic import Traffic, read_once, written_once

name = "decode"
summary = "decoding, one CTA per query head: the cache of a group is read by each of its query heads"
paper = "Pope et al. 2022, arXiv:2211.05102, section 3.3 (the traffic); no split, no packing"
order = 200
default_shape = {"seq": 1, "seq_kv": 4096}


@dataclass(frozen=True, slots=True)
class DecodeSchedule(DecodeTiles):
    """`DecodeTiles`; a tile of 16 rows is one query head's, most of it padding."""


Schedule_ = DecodeSchedule


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> DecodeSchedule:
    """64 keys per step, fewer of wide heads."""
    return DecodeSchedule(tile_kv=keys_per_step(problem, 64))


def _blocks(p: AttentionProblem, schedule: DecodeTiles) -> tuple[TensorTable, ContiguousCache, DecodeBlocks]:
    table = TensorTable()
    cache = ContiguousCache(p, table)
    return table, cache, DecodeBlocks(p, cache, table, tile_q=schedule.tile_q, packed=False)


def plan(problem: AttentionProblem, schedule: DecodeSchedule) -> Plan:
    """Tensors and the single launch."""
    problem.require(FEATURES)
    table, cache, blocks = _blocks(problem, schedule)

    def work(cta: int) -> Sequence[WorkItem]:
        return blocks.items(cta, 0, lambda keys: keys, lambda split, o, lse: (o, lse))

    launch = decode_launch(name, problem, schedule, blocks.count, work, finish)
    return Plan(name, problem, schedule, table.tensors, (launch,), ("Q", *cache.inputs), ("O", "LSE"))


def textbook(plan: Plan) -> Traffic:
    """The keys and values that a sequence's rows see, once per KV head; Q read, O written."""
    return read_once(plan, "Q") | cache_textbook(plan) | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Every query head reads the keys and values that its rows see."""
    blocks = _blocks(plan.problem, plan.schedule)[2]
    return blocks.traffic(1, lambda keys: keys) | written_once(plan, "O", "LSE")
