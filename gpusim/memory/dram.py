"""HBM: channels, pseudo-channels, banks with open rows, refresh, and posted writes drained in batches.

A controller that reorders (FR-FCFS) keeps the data bus busy while rows open, so the bus, the rate of activates (tRRD,
tFAW) and each bank (tRC) are separate servers: a request ends when the last of its three is done, and none blocks the
others. A request whose row was open a short while ago joins it, as the reordering queue would have let it.
"""

from __future__ import annotations

from typing import Any

from gpusim.jit import njit


@njit
def after_refresh(m: Any, t: float) -> float:
    """The first time at or after `t` at which no all-bank refresh is running."""
    phase = t % m.refresh_interval
    return t + (m.refresh_cycles - phase) if phase < m.refresh_cycles else t


@njit
def pseudo_channel(m: Any, line: int, partition: int, slice_index: int) -> int:
    """Pseudo-channel of a line: each slice owns the channels behind it, a line alternates between their halves."""
    channel = partition * m.channels + slice_index * m.channels // m.slices
    local = line // (m.partitions * m.slices)
    return channel * m.pseudo_channels + local % m.pseudo_channels


@njit
def open_row(m: Any, pc: int, line: int, t: float) -> float:
    """Make the line's row open; returns when its columns can be accessed."""
    local = line // (m.partitions * m.slices * m.pseudo_channels) // m.row_lines
    # Rows that follow each other go to other banks; the xor keeps power-of-two strides from camping on one.
    bank = (local ^ (local // m.banks)) % m.banks
    row = local // m.banks
    slot = pc * m.banks + bank
    recent = 2 * slot
    if m.open_row[recent] == row:
        return max(t, m.bank_free[slot] - m.row_cycles + m.row_miss_cycles)
    if m.open_row[recent + 1] == row and t < m.bank_free[slot] - m.row_cycles + m.reorder_window:
        return t
    start = max(t, m.bank_free[slot])
    if m.activate_free[pc] < t:
        m.activate_free[pc] = t
    start = max(start, m.activate_free[pc])
    m.activate_free[pc] += m.activate_cycles
    m.bank_free[slot] = start + m.row_cycles
    m.open_row[recent + 1] = m.open_row[recent]
    m.open_row[recent] = row
    return start + m.row_miss_cycles


@njit
def dram_read(m: Any, line: int, partition: int, slice_index: int, sectors: int, t: float) -> float:
    """Read `sectors` of a line; returns the delay beyond the unloaded latency (which includes one row miss)."""
    pc = pseudo_channel(m, line, partition, slice_index)
    ready = open_row(m, pc, line, t) - m.row_miss_cycles
    bus = after_refresh(m, max(m.bus_free[pc], t))
    m.bus_free[pc] = bus + sectors * m.burst_cycles
    return max(ready, m.bus_free[pc]) - t


@njit
def dram_write(m: Any, line: int, partition: int, slice_index: int, sectors: int, t: float) -> float:
    """Queue a write of `sectors`; a full batch is drained at once. Returns the delay until the queue has room."""
    pc = pseudo_channel(m, line, partition, slice_index)
    open_row(m, pc, line, t)
    m.write_queue[pc] += sectors
    if m.write_queue[pc] >= m.write_batch:
        bus = after_refresh(m, max(m.bus_free[pc], t))
        m.bus_free[pc] = bus + m.turnaround_cycles + m.write_queue[pc] * m.burst_cycles
        m.write_queue[pc] = 0
    return max(0.0, m.bus_free[pc] - t)
