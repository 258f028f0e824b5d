"""The part of the memory system's state that belongs to HBM (see `gpusim.memory.state`), for all pseudo-channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from gpusim.memory.hbm.mapping import Organisation, Place, new_mapping
from gpusim.memory.hbm.reserve import REFRESHES
from gpusim.memory.hbm.rules import Rules, in_cycles
from gpusim.memory.hbm.timing import CLOSED, new_banks
from gpusim.memory.sizes import SECTOR_BYTES
from gpusim.spec import GpuSpec

WRITE_HIGH, WRITE_LOW = 0.8, 0.2
"""Shares of the write queue at which draining starts and ends; Ramulator's."""
REORDER_ROW_CYCLES = 4
"""How many row cycles after an activate a request for the row before can still join; estimate."""

_INT, _FLOAT = types.int64, types.float64
_F64, _I64 = types.float64[::1], types.int64[::1]
HBM_FIELDS: list[tuple[str, Any]] = [
    ("channels", _INT),  # per partition
    ("place", types.NamedUniTuple(_INT, len(Place._fields), Place)),
    ("rules", types.NamedUniTuple(_FLOAT, len(Rules._fields), Rules)),
    ("banks", _INT),  # from here to group_read: of `hbm.timing.Banks`, so that its rules apply
    ("banks_per_group", _INT),
    ("open_row", _I64),
    ("bank_act", _F64),
    ("bank_pre", _F64),
    ("bank_read", _F64),
    ("bank_write", _F64),
    ("bank_refreshed", _F64),
    ("group_read", _F64),
    ("row_before", _I64),  # the row each bank had open before
    ("refresh", _INT),
    ("burst_cycles", _FLOAT),  # of one sector
    ("read_bus_cycles", _FLOAT),  # bus time that a sector costs in a stream of reads, of writes
    ("write_bus_cycles", _FLOAT),
    ("activate_cycles", _FLOAT),  # tFAW / 4
    ("turnaround_cycles", _FLOAT),  # of the bus, to writing and back
    ("write_high", _INT),  # sectors queued at which writes are drained
    ("write_low", _INT),
    ("reorder_window", _FLOAT),
    ("bus_free", _F64),
    ("activate_free", _F64),
    ("write_queue", _I64),
    ("reads_waiting", _I64),  # whether something was read since the last drain
]


def hbm_values(gpu: GpuSpec) -> dict[str, Any]:
    """The values of `HBM_FIELDS` for a GPU: banks that have long been idle, empty queues."""
    hbm, timing = gpu.hbm, gpu.hbm.timing
    total = hbm.pseudo_channels_total
    organisation = Organisation(
        hbm.pseudo_channels, hbm.bank_groups, hbm.banks_per_group, hbm.row_bytes, hbm.access_bytes
    )
    rules = in_cycles(timing, gpu.cycles(1.0))
    burst = gpu.cycles(hbm.burst_ns) * SECTOR_BYTES / hbm.access_bytes
    return {
        "channels": hbm.channels // gpu.l2.partitions,
        "place": new_mapping(hbm.mapping, organisation),
        "rules": rules,
        **new_banks(total, hbm.bank_groups, hbm.banks_per_group, np.float64)._asdict(),
        "row_before": np.full(total * hbm.banks, CLOSED, np.int64),
        "refresh": REFRESHES[hbm.refresh],
        "burst_cycles": burst,
        "read_bus_cycles": burst / hbm.read_efficiency,
        "write_bus_cycles": burst / hbm.write_efficiency,
        "activate_cycles": max(rules.faw / 4, rules.rrd_s),
        "turnaround_cycles": rules.rtw + rules.wtr_l - 2 * rules.burst,
        "write_high": max(1, round(WRITE_HIGH * hbm.write_queue)),
        "write_low": round(WRITE_LOW * hbm.write_queue),
        "reorder_window": REORDER_ROW_CYCLES * rules.rc,
        "bus_free": np.zeros(total),
        "activate_free": np.zeros(total),
        "write_queue": np.zeros(total, np.int64),
        "reads_waiting": np.zeros(total, np.int64),
    }
