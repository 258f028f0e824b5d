"""Address mappings: which pseudo-channel, bank and row of its channel an address lies in.

A mapping is a list of fields, from the lowest address bits up. Sizes need not be powers of two: a field is a digit of
the address in mixed radix. `bgi` and `default` are those of the Ramulator oracle, `permuted` is the simulator's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpusim.errors import UserError
from gpusim.jit import njit
from gpusim.memory.sizes import LINE_BYTES

__all__ = ["MAPPINGS", "Organisation", "Place", "map_address", "map_addresses", "new_mapping"]


_FIELDS: dict[str, tuple[str, ...]] = {
    "bgi1pc": ("group", "column", "bank", "row"),
    "bgi2pc": ("pc", "group", "column", "bank", "row"),
    "default2pc": ("column", "pc", "group", "bank", "row"),
    "permuted": ("line", "pc", "column", "group", "bank", "row"),
}
"""Name → fields above the bytes of one access. `line`: the columns of one cache line; `column`: the others."""

MAPPINGS = tuple(_FIELDS)
_PERMUTED = ("permuted",)
"""Mappings that add a hash of the row to the bank, so that strides of many rows do not camp on one bank."""


@dataclass(frozen=True, slots=True)
class Organisation:
    """What a channel consists of."""

    pseudo_channels: int
    groups: int
    banks_per_group: int
    row_bytes: int
    access_bytes: int

    @property
    def banks(self) -> int:
        """Banks of one pseudo-channel."""
        return self.groups * self.banks_per_group


class Place(NamedTuple):
    """A compiled mapping: each field is `address // unit % size`; the row is what is left above `row_unit`."""

    pc_unit: int
    pcs: int
    group_unit: int
    groups: int
    bank_unit: int
    banks_per_group: int
    row_unit: int
    permuted: int
    run_bytes: int  # consecutive bytes that stay in one row


def new_mapping(name: str, organisation: Organisation) -> Place:
    """The mapping called `name` for channels so organised; UserError if it does not fit them."""
    if name not in _FIELDS:
        raise UserError(f"hbm.mapping {name!r} is not one of {', '.join(MAPPINGS)}")
    fields: Sequence[str] = _FIELDS[name]
    o = organisation
    if "pc" not in fields and o.pseudo_channels > 1:
        raise UserError(f"hbm.mapping {name} is for one pseudo-channel per channel, not {o.pseudo_channels}")
    line = min(LINE_BYTES, o.row_bytes) if "line" in fields else o.access_bytes
    sizes = {
        "pc": o.pseudo_channels,
        "group": o.groups,
        "bank": o.banks_per_group,
        "line": line // o.access_bytes,
        "column": o.row_bytes // line,
        "row": 1,
    }
    units: dict[str, int] = {}
    unit = o.access_bytes
    for field in fields:
        units[field] = unit
        unit *= sizes[field]
    run = o.access_bytes
    for field in fields:
        if field not in ("line", "column") and sizes[field] > 1:
            break
        run *= sizes[field]
    return Place(
        pc_unit=units.get("pc", 1),
        pcs=o.pseudo_channels,
        group_unit=units["group"],
        groups=o.groups,
        bank_unit=units["bank"],
        banks_per_group=o.banks_per_group,
        row_unit=units["row"],
        permuted=int(name in _PERMUTED),
        run_bytes=run,
    )


@njit
def map_address(p: Any, address: int) -> tuple[int, int]:
    """(bank, numbered through all pseudo-channels of the channel, row) of a byte address within the channel."""
    pc = address // p.pc_unit % p.pcs
    bank = (address // p.group_unit % p.groups) * p.banks_per_group + address // p.bank_unit % p.banks_per_group
    row = address // p.row_unit
    banks = p.groups * p.banks_per_group
    if p.permuted:
        # Every digit of the row, base `banks`, turns the bank on; rows that differ anywhere mostly differ in bank.
        turned, digits = bank, row
        while digits:
            turned += digits % banks
            digits //= banks
        bank = turned % banks
    return pc * banks + bank, row


@njit
def _map_all(p: Any, addresses: Any, banks: Any, rows: Any) -> None:
    for i in range(len(addresses)):
        banks[i], rows[i] = map_address(p, addresses[i])


def map_addresses(place: Place, addresses: Any) -> tuple[Any, Any]:
    """`map_address` of an array of byte addresses: (banks, rows)."""
    banks, rows = np.empty(len(addresses), np.int64), np.empty(len(addresses), np.int64)
    _map_all(place, np.ascontiguousarray(addresses, np.int64), banks, rows)
    return banks, rows
