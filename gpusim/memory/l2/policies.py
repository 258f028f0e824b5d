"""Every policy of the L2 that a GPU file can name. A new one is a file and a line here."""

from __future__ import annotations

from gpusim.memory.l2.replacement.bip import BIP
from gpusim.memory.l2.replacement.fifo import FIFO
from gpusim.memory.l2.replacement.lip import LIP
from gpusim.memory.l2.replacement.lru import LRU
from gpusim.memory.l2.replacement.random import RANDOM
from gpusim.memory.l2.replacement.rules import Replacement
from gpusim.memory.l2.replacement.srrip import SRRIP
from traces.hints import HINTS

REPLACEMENTS: dict[str, Replacement] = {policy.name: policy for policy in (LRU, FIFO, RANDOM, SRRIP, LIP, BIP)}
"""`l2.replacement`."""

WRITE_POLICIES = {"write_back": 0, "write_through": 1, "write_around": 2}
"""`l2.write_policy` (`gpusim.memory.l2.write`)."""
WRITE_BACK, WRITE_THROUGH, WRITE_AROUND = WRITE_POLICIES.values()

SLICE_HASHES = {"mix": 0, "linear": 1, "xor": 2}
"""`l2.slice_hash` (`gpusim.memory.l2.slice_hash`)."""
MIX, LINEAR, XOR = SLICE_HASHES.values()

HOME_ALLOCATIONS = {"none": -1.0, "allocate": 0.0, "middle": 5 / 8, "evict_first": 1.0}
"""`l2.home_allocation`: how far from the most recent (0) to the next to go (1) a far read stays at home."""

COALESCERS = ("merge", "none")
"""`noc.coalescer` (`gpusim.memory.l2.coalescer`)."""

NORMAL, EVICT_FIRST, EVICT_LAST, NO_ALLOCATE = range(len(HINTS))
"""Codes of a load's hint (`traces.ops.HINTS`)."""


def home_depth(policy: str, ways: int) -> int:
    """Place in a set's order of recency that `l2.home_allocation` stands for (0: most recent); -1 for none."""
    share = HOME_ALLOCATIONS[policy]
    return -1 if share < 0 else min(int(ways * share), ways - 1)
