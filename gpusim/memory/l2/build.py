"""The compiled record's fields of the L2, and their values for a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from gpusim.errors import UserError
from gpusim.memory.l2 import coalescer
from gpusim.memory.l2.home import home_mask
from gpusim.memory.l2.in_flight import SLOTS
from gpusim.memory.l2.policies import REPLACEMENTS, SLICE_HASHES, WRITE_POLICIES, home_depth
from gpusim.memory.l2.tags import EMPTY, MAX_TAG
from gpusim.memory.sizes import LINE_BYTES, SECTOR_BYTES
from gpusim.spec import GpuSpec

_INT = types.int64
FIELDS: list[tuple[str, Any]] = [
    ("partitions", _INT),
    ("sets", _INT),
    ("ways", _INT),
    ("slices", _INT),  # per partition
    ("slice_hash", _INT),
    ("home_mask", _INT),
    ("cached", _INT),
    ("write_policy", _INT),
    ("home_depth", _INT),  # place in the order of recency where a far read stays at home, -1: it does not
    ("dirty_cap_sectors", _INT),  # per partition
    ("idle_dirty_sectors", _INT),  # per partition
    ("clean_ways", _INT),  # lines of a full set, the next to go, that are kept clean
    ("tags", types.uint32[::1]),
    ("dirty_sectors", types.int64[::1]),
    ("fill_line", types.int32[::1]),  # lines on their way, and when they leave the partition for an SM
    ("fill_ready", types.float64[::1]),
    # replacement
    ("plain_lru", _INT),  # LRU without a set-aside
    ("hit_rule", _INT),
    ("fill_rule", _INT),
    ("victim_rule", _INT),
    ("ages_kept", _INT),
    ("ages", types.int64[::1]),  # per set
    ("dice", types.int64[::1]),  # one element
    ("pin_ways", _INT),  # most persisting lines of a set
    ("pinned", types.int64[::1]),  # persisting lines, per set
    *coalescer.FIELDS,
]


def start(gpu: GpuSpec, lines: int) -> dict[str, Any]:
    """The fields' values for a GPU and addresses of `lines` lines, when nothing is cached yet."""
    l2 = gpu.l2
    if l2.line_bytes != LINE_BYTES or l2.sector_bytes != SECTOR_BYTES:
        raise UserError(f"l2.line and l2.sector must be {LINE_BYTES} and {SECTOR_BYTES} bytes in this version")
    ways = l2.ways
    if math.isinf(l2.size_bytes):
        sets = -(-lines // ways)  # consecutive lines fall into consecutive sets: none can overflow
    else:
        sets = int(l2.size_bytes * l2.data_share) // (LINE_BYTES * ways * l2.partitions)
    cached = int(sets > 0)
    if not cached:  # no tags are looked up, but lines spread over slices and channels by their set
        sets = l2.slices_per_partition * 64
    if lines // sets > MAX_TAG:
        raise UserError(f"l2.size {l2.size_bytes:.0f} bytes is too small for tensors of {lines * LINE_BYTES} bytes")
    cap = l2.dirty_cap_bytes
    cap_sectors = (
        (1 << 60) if math.isinf(cap) or math.isinf(l2.size_bytes) else int(cap) // SECTOR_BYTES // l2.partitions
    )
    rows = l2.partitions * sets
    return {
        "partitions": l2.partitions,
        "sets": sets,
        "ways": ways,
        "slices": l2.slices_per_partition,
        "slice_hash": SLICE_HASHES[l2.slice_hash],
        "home_mask": home_mask(l2.home_bits),
        "cached": cached,
        "write_policy": WRITE_POLICIES[l2.write_policy],
        # A cache without end has no reason to leave a line out: each is read from DRAM once.
        "home_depth": home_depth("allocate" if math.isinf(l2.size_bytes) else l2.home_allocation, ways),
        "dirty_cap_sectors": cap_sectors,
        "idle_dirty_sectors": int(cap_sectors * l2.idle_dirty_share),
        "clean_ways": l2.clean_ways,
        "tags": np.full(rows * ways, EMPTY, np.uint32),
        "dirty_sectors": np.zeros(l2.partitions, np.int64),
        "fill_line": np.full(l2.partitions * SLOTS, -1, np.int32),
        "fill_ready": np.zeros(l2.partitions * SLOTS),
        **_replacement(gpu, rows),
        **coalescer.start(gpu, bool(cached)),
    }


def _replacement(gpu: GpuSpec, rows: int) -> dict[str, Any]:
    policy, pin_ways = REPLACEMENTS[gpu.l2.replacement], gpu.l2.persisting_ways
    return {
        "plain_lru": int(policy.name == "lru" and not pin_ways),
        "hit_rule": policy.hit,
        "fill_rule": policy.fill,
        "victim_rule": policy.victim,
        "ages_kept": int(policy.ages),
        "ages": np.zeros(rows if policy.ages else 1, np.int64),
        "dice": np.zeros(1, np.int64),
        "pin_ways": pin_ways,
        "pinned": np.zeros(rows, np.int64),
    }
