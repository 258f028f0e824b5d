"""What the agents of a FlashAttention-3 query block agree on: its shape, and the barriers between them."""

from __future__ import annotations

from dataclasses import dataclass

from traces.ops import Barrier
from traces.schedule import key_value_blocks

ROWS_PER_WARPGROUP = 64
"""Rows of one wgmma instruction (PTX ISA, wgmma.mma_async m64nNk16)."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What the programs of a query block depend on beside its matrices.

    Attributes:
        scale: softmax scale.
        tile_q, tile_kv, stages, overlap, ping_pong, p_in_shared: as in `Flash3Schedule`.
        keys: keys that the block's rows see.
        diagonal, window: local row r sees key j up to r + diagonal, with a window from r + diagonal - window + 1 on.
        backward: whether KV blocks go from the last to the first.
        multicast, share: CTAs of the cluster that share K and V, and which of them this one is.
    """

    scale: float
    tile_q: int
    tile_kv: int
    stages: int
    overlap: bool
    ping_pong: bool
    p_in_shared: bool
    keys: int
    diagonal: int
    window: int
    backward: bool
    multicast: int = 1
    share: int = 0

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.tile_q // ROWS_PER_WARPGROUP

    @property
    def blocks(self) -> list[int]:
        """KV blocks in the order in which they are visited."""
        return key_value_blocks(-(-self.keys // self.tile_kv), "backward" if self.backward else "forward", 0)

    def masked(self, block: int) -> bool:
        """Whether the block's scores are masked: the last one may end past the keys, others may hold hidden ones."""
        start, end = block * self.tile_kv, (block + 1) * self.tile_kv
        before_window = self.window > 0 and start <= self.diagonal + self.tile_q - 1 - self.window
        return end >= self.keys or end > self.diagonal + 1 or before_window


@dataclass(frozen=True, slots=True)
class Barriers:
    """The mbarriers and named barriers of a CTA; they live on from query block to query block.

    Attributes:
        q_full, k_full, v_full: a tile has landed (K and V: per stage). v_ready: and V is as products want it.
        q_empty, k_empty, v_empty: all consumers are done with it.
        turn: per consumer, it may issue its products.
        v_read: all consumers are done with V of this query block, so that O may go where it was.
        o_stored: O has left.
    """

    q_full: Barrier
    q_empty: Barrier
    k_full: list[Barrier]
    k_empty: list[Barrier]
    v_full: list[Barrier]
    v_ready: list[Barrier]
    v_empty: list[Barrier]
    turn: list[Barrier]
    v_read: Barrier
    o_stored: Barrier

    @classmethod
    def of(cls, stages: int, consumers: int, transposed: bool) -> Barriers:
        """Those of a CTA; every 'empty' one is open at first, and it is consumer 0's turn."""

        def full(what: str) -> list[Barrier]:
            return [Barrier(f"{what} {s}") for s in range(stages)]

        def empty(what: str) -> list[Barrier]:
            return [Barrier(f"{what} empty {s}", consumers, open_phases=1) for s in range(stages)]

        v_full = full("V full")
        return cls(
            q_full=Barrier("Q full"),
            q_empty=Barrier("Q empty", consumers, open_phases=1),
            k_full=full("K full"),
            k_empty=empty("K"),
            v_full=v_full,
            v_ready=full("V transposed") if transposed else v_full,
            v_empty=empty("V"),
            turn=[Barrier(f"turn {w}", open_phases=int(w == 0)) for w in range(consumers)],
            v_read=Barrier("V read", consumers),
            o_stored=Barrier("O stored", consumers, open_phases=1),
        )
