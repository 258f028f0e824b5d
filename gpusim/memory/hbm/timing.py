"""Banks, and when a command to one is legal.

`Banks` remembers when each command was last issued: to a bank, to a bank group, to a pseudo-channel. `earliest_*` gives
the first time at which a command breaks no rule, the largest of "last command of this kind plus distance"; `issue_*`
records it. Whether a command makes sense (the right row is open, the bank is closed) is for the caller to see to.

Every function takes time in the unit of its `Rules`: ticks of a controller, or cycles of an SM. Banks are numbered
through all pseudo-channels; a bank group and a pseudo-channel are runs of consecutive banks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpusim.jit import njit

NEVER = -(1 << 50)
"""A time so long ago that no rule reaches from there."""
CLOSED = -1
"""Instead of a row: none is open."""


class Banks(NamedTuple):
    """The state of some pseudo-channels. Times are those of the last commands.

    Attributes:
        banks, banks_per_group: banks of one pseudo-channel and of one group.
        open_row: of each bank, `CLOSED` for none.
        bank_act, bank_pre, bank_read, bank_write: last ACT, PRE, RD, WR of each bank.
        bank_refreshed: when the bank's last refresh ends, i.e. allows an ACT.
        group_act, group_read, group_write: last of each bank group.
        pc_act, pc_pre, pc_read, pc_write, pc_ref: last of each pseudo-channel (`pc_ref`: REFpb).
        four_acts: the last four ACTs of each pseudo-channel, a ring; next_act: its oldest entry.
    """

    banks: int
    banks_per_group: int
    open_row: Any
    bank_act: Any
    bank_pre: Any
    bank_read: Any
    bank_write: Any
    bank_refreshed: Any
    group_act: Any
    group_read: Any
    group_write: Any
    pc_act: Any
    pc_pre: Any
    pc_read: Any
    pc_write: Any
    pc_ref: Any
    four_acts: Any
    next_act: Any


def new_banks(pseudo_channels: int, groups: int, banks_per_group: int, dtype: Any = np.int64) -> Banks:
    """Closed banks that have been idle for ever; times are kept as `dtype`."""

    def times(count: int) -> Any:
        return np.full(count, NEVER, dtype)

    banks = groups * banks_per_group
    per_bank: list[Any] = [times(pseudo_channels * banks) for _ in range(5)]
    per_group = [times(pseudo_channels * groups) for _ in range(3)]
    per_pc = [times(pseudo_channels) for _ in range(5)]
    row = np.full(pseudo_channels * banks, CLOSED, np.int64)
    acts, oldest = times(4 * pseudo_channels), np.zeros(pseudo_channels, np.int64)
    return Banks(*(banks, banks_per_group, row, *per_bank, *per_group, *per_pc, acts, oldest))


def forget_times(values: Mapping[str, Any]) -> None:
    """Let everything in the fields of `Banks` among `values` lie long ago; rows stay as they are."""
    for name in Banks._fields:
        if name.startswith(("bank_", "group_", "pc_", "four_")):
            values[name][:] = NEVER


@njit
def bank_ready_to_act(b: Any, r: Any, bank: int) -> Any:
    """First time at which the bank itself can be activated, as far as its own commands go."""
    return max(b.bank_act[bank] + r.rc, b.bank_pre[bank] + r.rp, b.bank_refreshed[bank])


@njit
def bank_ready_to_precharge(b: Any, r: Any, bank: int) -> Any:
    """First time at which the bank's open row can be closed, as far as its own commands go."""
    return max(b.bank_act[bank] + r.ras, b.bank_read[bank] + r.rtp, b.bank_write[bank] + r.wtp)


@njit
def earliest_act(b: Any, r: Any, bank: int) -> Any:
    """First legal time of ACT: tRC and tRP of the bank, tRRD of group and pseudo-channel, tFAW, refreshes."""
    group, pc = bank // b.banks_per_group, bank // b.banks
    fifth = b.four_acts[4 * pc + b.next_act[pc]] + r.faw
    others = max(b.group_act[group] + r.rrd_l, b.pc_act[pc] + r.rrd_s, b.pc_ref[pc] + r.rref)
    return max(bank_ready_to_act(b, r, bank), others, fifth)


@njit
def issue_act(b: Any, bank: int, row: int, t: Any) -> None:
    """Open `row` with an ACT at `t`."""
    group, pc = bank // b.banks_per_group, bank // b.banks
    b.open_row[bank] = row
    b.bank_act[bank] = t
    b.group_act[group] = t
    b.pc_act[pc] = t
    slot = b.next_act[pc]
    b.four_acts[4 * pc + slot] = t
    b.next_act[pc] = (slot + 1) & 3


@njit
def earliest_pre(b: Any, r: Any, bank: int) -> Any:
    """First legal time of PRE: tRAS, tRTP and write recovery of the bank, tPPD of the pseudo-channel."""
    return max(bank_ready_to_precharge(b, r, bank), b.pc_pre[bank // b.banks] + r.ppd)


@njit
def issue_pre(b: Any, bank: int, t: Any) -> None:
    """Close the bank with a PRE at `t`."""
    b.open_row[bank] = CLOSED
    b.bank_pre[bank] = t
    b.pc_pre[bank // b.banks] = t


@njit
def earliest_read(b: Any, r: Any, bank: int) -> Any:
    """First legal time of RD: tRCD of the bank, tCCD after reads, tWTR after writes."""
    group, pc = bank // b.banks_per_group, bank // b.banks
    after_reads = max(b.group_read[group] + r.ccd_l, b.pc_read[pc] + r.ccd_s)
    after_writes = max(b.group_write[group] + r.wtr_l, b.pc_write[pc] + r.wtr_s)
    return max(b.bank_act[bank] + r.rcd_read, after_reads, after_writes)


@njit
def issue_read(b: Any, bank: int, t: Any) -> None:
    """Read a burst of the open row with a RD at `t`."""
    b.bank_read[bank] = t
    b.group_read[bank // b.banks_per_group] = t
    b.pc_read[bank // b.banks] = t


@njit
def earliest_write(b: Any, r: Any, bank: int) -> Any:
    """First legal time of WR: tRCD of the bank, tCCD after writes, tRTW after reads."""
    group, pc = bank // b.banks_per_group, bank // b.banks
    after_writes = max(b.group_write[group] + r.ccd_l, b.pc_write[pc] + r.ccd_s)
    return max(b.bank_act[bank] + r.rcd_write, after_writes, b.pc_read[pc] + r.rtw)


@njit
def issue_write(b: Any, bank: int, t: Any) -> None:
    """Write a burst into the open row with a WR at `t`."""
    b.bank_write[bank] = t
    b.group_write[bank // b.banks_per_group] = t
    b.pc_write[bank // b.banks] = t


@njit
def earliest_pre_all(b: Any, r: Any, pc: int) -> Any:
    """First legal time of PREab, which closes every bank of a pseudo-channel."""
    t = b.pc_pre[pc] + r.ppd
    for bank in range(pc * b.banks, (pc + 1) * b.banks):
        if b.open_row[bank] != CLOSED:
            t = max(t, bank_ready_to_precharge(b, r, bank))
    return t


@njit
def issue_pre_all(b: Any, pc: int, t: Any) -> None:
    """Close every open bank of a pseudo-channel with a PREab at `t`."""
    for bank in range(pc * b.banks, (pc + 1) * b.banks):
        if b.open_row[bank] != CLOSED:
            issue_pre(b, bank, t)


@njit
def earliest_refresh_all(b: Any, r: Any, pc: int) -> Any:
    """First legal time of REFab (every bank must be closed): tRP and tRC of each bank, the refresh before."""
    t = earliest_refresh_bank(b, r, pc * b.banks)
    for bank in range(pc * b.banks + 1, (pc + 1) * b.banks):
        t = max(t, earliest_refresh_bank(b, r, bank))
    return t


@njit
def issue_refresh_all(b: Any, r: Any, pc: int, t: Any) -> None:
    """Refresh every bank of a pseudo-channel with a REFab at `t`."""
    for bank in range(pc * b.banks, (pc + 1) * b.banks):
        b.bank_refreshed[bank] = t + r.rfc_ab


@njit
def earliest_refresh_bank(b: Any, r: Any, bank: int) -> Any:
    """First legal time of REFpb (the bank must be closed): tRP, tRC and refresh of the bank, tRREF of the others."""
    pc = bank // b.banks
    own = max(b.bank_pre[bank] + r.pre_to_ref, b.bank_act[bank] + r.act_to_ref, b.bank_refreshed[bank])
    return max(own, b.pc_ref[pc] + r.rref, b.pc_act[pc] + r.rrd_s)


@njit
def issue_refresh_bank(b: Any, r: Any, bank: int, t: Any) -> None:
    """Refresh one bank with a REFpb at `t`."""
    b.bank_refreshed[bank] = t + r.rfc_pb
    b.pc_ref[bank // b.banks] = t
