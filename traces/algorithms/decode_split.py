"""Decoding with packed query heads and split KV ("Flash-Decoding", Dao et al. 2023), as FlashAttention-2 and -3 do it.

The query heads that share a KV head are the rows of one tile, so K and V are read once. Where that leaves fewer CTAs
than the GPU runs at once, each takes a part of the keys, and a second kernel merges the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.combine import LOADS_IN_FLIGHT, MAX_SPLITS, ROUND, Partials, choose_splits
from traces.decode_programs import decode_launch
from traces.decoding import (
    FEATURES,
    MMA_ROWS,
    DecodeBlocks,
    DecodeTiles,
    even_parts,
    keys_per_step,
)
from traces.kv_cache import ContiguousCache, KvCache, cache_textbook
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.problem import AttentionProblem
from traces.schedule import require
from traces.softmax import finish
from traces.tensor import TensorTable
from traces.traffic import Traffic, blocks, read_once, written_once

name = "decode_split"
summary = "Flash-Decoding: query heads of a KV head packed into one tile, the keys split over CTAs, then combined"
paper = "Dao et al. 2023, Flash-Decoding; splits as in FlashAttention-2 (arXiv:2307.08691)"
order = 210
default_shape = {"seq": 1, "seq_kv": 4096}


@dataclass(frozen=True, slots=True)
class SplitTiles(DecodeTiles):
    """`DecodeTiles`, and how the keys are split.

    Attributes:
        splits: parts of the keys, at most 128; 0 for as many as fill `cta_slots` to within 85 % of the best.
        cta_slots: CTAs that the GPU runs at once (two per SM).
        combine_loads: partial tiles of O that a CTA of the combine kernel has under way; more than one while there are
            `traces.combine.ROUND` splits left.
    """

    splits: int = 0
    cta_slots: int = 264
    combine_loads: int = LOADS_IN_FLIGHT

    def __post_init__(self) -> None:
        DecodeTiles.__post_init__(self)
        require(0 <= self.splits <= MAX_SPLITS, f"schedule key splits must be 0 to {MAX_SPLITS}, not {self.splits}")
        require(self.cta_slots >= 1, f"schedule key cta_slots must be at least 1, not {self.cta_slots}")
        loads = self.combine_loads
        require(1 <= loads <= ROUND, f"schedule key combine_loads must be 1 to {ROUND}, not {loads}")


@dataclass(frozen=True, slots=True)
class DecodeSplitSchedule(SplitTiles):
    """Tiles of FlashAttention-2's split-KV kernel."""

    tile_q: int = 64
    tile_kv: int = 128
    stages: int = 1


Schedule_ = DecodeSplitSchedule


def packed_rows(p: AttentionProblem, least: int, most: int) -> int:
    """Rows of a tile for all query rows that share a KV head, a whole number of instructions, within bounds."""
    return max(least, min(most, blocks(p.group * p.seq, MMA_ROWS) * MMA_ROWS))


def default_schedule(problem: AttentionProblem, instruction: str, sm_count: int) -> DecodeSplitSchedule:
    """The CUDA release's 64 rows (more where a group has more) by 256, 128 or 64 keys; with MLA 64 by 64, twice."""
    if problem.mla:
        return DecodeSplitSchedule(tile_kv=keys_per_step(problem, 256), stages=2, cta_slots=sm_count)
    most = 256 if problem.dim <= 64 else 128
    tile_q = packed_rows(problem, 64, 128 if problem.dim <= 128 else 64)
    return DecodeSplitSchedule(tile_q=tile_q, tile_kv=keys_per_step(problem, most), cta_slots=2 * sm_count)


class SplitDecoding:
    """The two launches over any cache: parts, then their merger where there is more than one.

    Attributes:
        blocks: the query rows.
        splits: parts of each block's keys.
    """

    def __init__(self, p: AttentionProblem, cache: KvCache, table: TensorTable, schedule: SplitTiles) -> None:
        self._problem, self._schedule = p, schedule
        self.blocks = DecodeBlocks(p, cache, table, tile_q=schedule.tile_q, packed=True)
        steps = blocks(self.blocks.most_keys, schedule.tile_kv)
        self.splits = schedule.splits or choose_splits(self.blocks.count, schedule.cta_slots, steps)
        self._part_keys = even_parts(self.splits, schedule.tile_kv)
        self._partials = Partials.allocate(table, self.blocks.o, self.splits) if self.splits > 1 else None

    def launches(self, name: str) -> tuple[KernelLaunch, ...]:
        """CTAs are in order of the grid (splits, KV heads, sequences), splits fastest."""

        def work(cta: int) -> Sequence[WorkItem]:
            number, split = divmod(cta, self.splits)
            partials = self._partials
            return self.blocks.items(
                number, split, self._part_keys, lambda s, o, lse: partials.block(s, o) if partials else (o, lse)
            )

        ctas = self.blocks.count * self.splits
        launch = decode_launch(name, self._problem, self._schedule, ctas, work, finish)
        if self._partials is None:
            return (launch,)
        return launch, self._partials.combine(self.blocks.o, self.blocks.lse, in_flight=self._schedule.combine_loads)

    def traffic(self) -> Traffic:
        """SM-port bytes of everything but the results."""
        partial = self._partials.traffic if self._partials else {}
        return self.blocks.traffic(self.splits, self._part_keys) | partial


def _decoding(p: AttentionProblem, schedule: SplitTiles) -> tuple[TensorTable, KvCache, SplitDecoding]:
    table = TensorTable()
    cache = ContiguousCache(p, table)
    return table, cache, SplitDecoding(p, cache, table, schedule)


def plan(problem: AttentionProblem, schedule: DecodeSplitSchedule) -> Plan:
    """Tensors and the launch, or two with splits."""
    problem.require(FEATURES)
    table, cache, decoding = _decoding(problem, schedule)
    launches = decoding.launches(name)
    return Plan(name, problem, schedule, table.tensors, launches, ("Q", *cache.inputs), ("O", "LSE"))


def textbook(plan: Plan) -> Traffic:
    """The keys and values that a sequence's rows see, once per KV head; Q read, O written; partial results left out."""
    return read_once(plan, "Q") | cache_textbook(plan) | written_once(plan, "O")


def sm_port(plan: Plan) -> Traffic:
    """Each KV head's rows read its keys and values once; splits write and read partial results."""
    return _decoding(plan.problem, plan.schedule)[2].traffic() | written_once(plan, "O", "LSE")
