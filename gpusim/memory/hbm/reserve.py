"""HBM as the simulator calls it: each access reserves its bank, its activate and its bus time when it is asked for.

A controller that reorders keeps the data bus busy while rows open, so every resource is a server of its own, and none
waits for another: the banks (tRC, tRAS, tRP, tRTP, tWR by the rules of `timing`), the rate of activates (tRRD, tFAW),
the bank groups (tCCD_L) and the bus (tCCD_S, turnarounds). All queue from `t`, the time of the request, because a
server that is booked for the future idles until then (see `gpusim.memory.access`); an access ends with its slowest.

Reordering shows in two places. A request whose row was the bank's last but one joins it within a window, as the
controller would have served it first; and a bank's columns are timed as if the bus were free for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusim.jit import njit
from gpusim.memory.hbm.mapping import map_address
from gpusim.memory.hbm.timing import CLOSED, bank_ready_to_act, bank_ready_to_precharge
from gpusim.memory.sizes import LINE_BYTES, SECTOR_BYTES

NO_REFRESH, ALL_BANK, PER_BANK = range(3)
REFRESHES = {"none": NO_REFRESH, "all_bank": ALL_BANK, "per_bank": PER_BANK}
"""`hbm.refresh` → its number here (the same as in `scheduler`)."""


@njit
def place_in_channels(m: Any, line: int, partition: int, slice_index: int) -> tuple[int, int]:
    """(channel, line within the channel): each slice of the L2 has its share of its partition's channels behind it."""
    channel = partition * m.channels + slice_index * m.channels // m.slices
    return channel, line // (m.partitions * m.slices)


@njit
def refresh_start(m: Any, bank: int, t: float) -> float:
    """Start of the bank's last refresh not after `t`. Pseudo-channels, and banks where one at a time, take turns."""
    banks = m.banks
    turn = bank * 0.6180339887 if m.refresh == PER_BANK else (bank // banks) * 0.6180339887
    phase = (turn - np.floor(turn)) * m.rules.refi
    return phase + np.floor((t - phase) / m.rules.refi) * m.rules.refi


@njit
def refresh_bank(m: Any, bank: int, t: float) -> None:
    """Bring the bank's refreshes up to date: the last one closed its row and keeps it shut until it ends."""
    if m.refresh == NO_REFRESH:
        return
    length = m.rules.rfc_pb if m.refresh == PER_BANK else m.rules.rfc_ab
    end = refresh_start(m, bank, t) + length
    if end > m.bank_refreshed[bank]:
        m.bank_refreshed[bank] = end
        m.open_row[bank] = CLOSED
        m.row_before[bank] = CLOSED


@njit
def open_row(m: Any, bank: int, row: int, t: float) -> float:
    """Make the row open, by PRE and ACT if it is not; returns the time of the ACT that opened it."""
    r = m.rules
    refresh_bank(m, bank, t)
    if m.open_row[bank] == row:
        return m.bank_act[bank]
    if m.row_before[bank] == row and t < m.bank_act[bank] + m.reorder_window:
        return t - r.rc
    m.bank_pre[bank] = max(t, bank_ready_to_precharge(m, r, bank))
    pc = bank // m.banks
    slot = max(m.activate_free[pc], t)
    m.activate_free[pc] = slot + m.activate_cycles
    act = max(bank_ready_to_act(m, r, bank), slot)
    m.bank_act[bank] = act
    m.row_before[bank] = m.open_row[bank]
    m.open_row[bank] = row
    return act


@njit
def take_group(m: Any, bank: int, bursts: int, t: float) -> float:
    """Pass `bursts` through the bank's group, tCCD_L apart; returns when the last has begun."""
    group = bank // m.banks_per_group
    m.group_read[group] = max(t, m.group_read[group] + m.rules.ccd_l) + (bursts - 1) * m.rules.ccd_l
    return m.group_read[group]


@njit
def take_bus(m: Any, pc: int, work: float, t: float) -> float:
    """Put `work` cycles of data on the bus; returns when they are through."""
    start = max(m.bus_free[pc], t)
    if m.refresh == ALL_BANK:
        start = max(start, refresh_start(m, pc * m.banks, start) + m.rules.rfc_ab)
    m.bus_free[pc] = start + work
    return m.bus_free[pc]


@njit
def read_bursts(m: Any, bank: int, row: int, bursts: int, t: float) -> float:
    """Read `bursts` of one row; returns when the data would be there if opening a row took no time."""
    r = m.rules
    pc = bank // m.banks
    column = max(t, open_row(m, bank, row, t) + r.rcd_read, m.bank_read[bank] + r.ccd_l) + (bursts - 1) * r.ccd_l
    m.bank_read[bank] = column
    begun = max(column - r.rp - r.rcd_read, take_group(m, bank, bursts, t))
    m.reads_waiting[pc] = 1
    return max(begun + m.burst_cycles, take_bus(m, pc, bursts * m.read_bus_cycles, t))


@njit
def write_bursts(m: Any, bank: int, row: int, bursts: int, t: float) -> float:
    """Post `bursts` to one row; returns when the queue has room for the next.

    A queue that is filled to its high watermark is drained to the low one at once; that turns the bus around, there and
    back, if there was something to read since the last time. A bank may lag behind by as much as the queue hides.
    """
    r = m.rules
    pc = bank // m.banks
    column = max(t, open_row(m, bank, row, t) + r.rcd_write, m.bank_write[bank] + r.ccd_l) + (bursts - 1) * r.ccd_l
    m.bank_write[bank] = column
    begun = max(column - r.rp - r.rcd_write, take_group(m, bank, bursts, t))
    m.write_queue[pc] += bursts
    if m.write_queue[pc] >= m.write_high:
        drained = m.write_queue[pc] - m.write_low
        take_bus(m, pc, drained * m.write_bus_cycles + m.reads_waiting[pc] * m.turnaround_cycles, t)
        m.write_queue[pc] = m.write_low
        m.reads_waiting[pc] = 0
    return max(m.bus_free[pc], begun - m.reorder_window)


@njit
def _sectors(m: Any, line: int, partition: int, slice_index: int, sectors: int, t: float, writing: bool) -> float:
    """Read or write the first `sectors` of a line, run by run of its mapping; returns the delay until all are done."""
    channel, local = place_in_channels(m, line, partition, slice_index)
    first = channel * m.place.pcs * m.banks
    run = m.place.run_bytes // SECTOR_BYTES
    done = t
    for sector in range(0, sectors, run):
        bank, row = map_address(m.place, local * LINE_BYTES + sector * SECTOR_BYTES)
        bursts = min(run, sectors - sector)
        if writing:
            done = max(done, write_bursts(m, first + bank, row, bursts, t))
        else:
            done = max(done, read_bursts(m, first + bank, row, bursts, t))
    return done - t


@njit
def dram_read(m: Any, line: int, partition: int, slice_index: int, sectors: int, t: float) -> float:
    """Read `sectors` of a line; returns the delay beyond the unloaded latency (which includes one row miss)."""
    return _sectors(m, line, partition, slice_index, sectors, t, False)


@njit
def dram_write(m: Any, line: int, partition: int, slice_index: int, sectors: int, t: float) -> float:
    """Queue a write of `sectors` of a line; returns the delay until the queue has room."""
    return _sectors(m, line, partition, slice_index, sectors, t, True)
