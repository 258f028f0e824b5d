"""The timing constraints of a pseudo-channel, as distances between two commands in one unit of time.

Names are JEDEC's without the t. Where a constraint counts from the end of the data (write recovery, write to read), the
sum is formed here, so that every rule is a distance from command to command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpusim.spec.hbm import HbmTiming

__all__ = ["COMMAND_TICKS", "Rules", "in_cycles", "in_ticks"]


class Rules(NamedTuple):
    """Least distance from one command to another; `_s` in another bank group, `_l` in the same one.

    Attributes:
        rcd_read, rcd_write: ACT to RD and to WR of that bank.
        ras: ACT to PRE. rc: ACT to ACT of one bank. rrd_s, rrd_l: ACT to ACT of two banks. faw: ACT to fifth ACT.
        rp: PRE to ACT. ppd: PRE to PRE of two banks.
        ccd_s, ccd_l: RD to RD, and WR to WR.
        rtp: RD to PRE. wtp: WR to PRE, the data and write recovery in between.
        rtw: RD to WR. wtr_s, wtr_l: WR to RD, the data in between.
        pre_to_ref, act_to_ref: PRE and ACT to the refresh of that bank.
        rfc_ab, rfc_pb: refresh of all banks, of one bank, to ACT. rref: REFpb to ACT or REFpb of another bank.
        refi: mean distance of all-bank refreshes.
        read_data: RD to the end of its data. burst: time of one access on the data bus.
    """

    rcd_read: float
    rcd_write: float
    ras: float
    rc: float
    rrd_s: float
    rrd_l: float
    faw: float
    rp: float
    ppd: float
    ccd_s: float
    ccd_l: float
    rtp: float
    wtp: float
    rtw: float
    wtr_s: float
    wtr_l: float
    pre_to_ref: float
    act_to_ref: float
    rfc_ab: float
    rfc_pb: float
    rref: float
    refi: float
    read_data: float
    burst: float


COMMAND_TICKS = {"act": 3, "pre": 1, "ref": 1, "read": 2, "write": 2}
"""How long each HBM3 command occupies its command bus, in half clock cycles."""

_BETWEEN: Mapping[str, tuple[str, str]] = {
    "rcd_read": ("act", "read"),
    "rcd_write": ("act", "write"),
    "ras": ("act", "pre"),
    "rp": ("pre", "act"),
    "rtp": ("read", "pre"),
    "wtp": ("write", "pre"),
    "act_to_ref": ("act", "ref"),
    "rfc_ab": ("ref", "act"),
    "rfc_pb": ("ref", "act"),
    "rref": ("ref", "act"),
}
"""Rules between commands of unlike length; the standard counts from the end of one to the end of the other."""


def in_ticks(timing: HbmTiming, clock_ns: float, ppd_clocks: int = 2) -> Rules:
    """Rules in ticks of half a clock, each rounded up to whole clocks, from the start of a command to the next's.

    A constraint holds from the end of one command to the end of the next, so a distance between starts is longer after
    a long command and shorter before one: `2 t + length(first) - length(second)`.
    """
    ticks = {name: 2 * _clocks(value, clock_ns) for name, value in _distances(timing).items()}
    ticks["ppd"] = 2 * ppd_clocks
    for name, (first, second) in _BETWEEN.items():
        ticks[name] += COMMAND_TICKS[first] - COMMAND_TICKS[second]
    return Rules(**ticks)


def in_cycles(timing: HbmTiming, cycles_per_ns: float) -> Rules:
    """Rules in cycles of another clock, as fractions."""
    return Rules(**{name: value * cycles_per_ns for name, value in _distances(timing).items()})


def _clocks(ns: float, clock_ns: float) -> int:
    return -int(-(ns / clock_ns - 1e-6) // 1)


def _distances(t: HbmTiming) -> dict[str, float]:
    burst = t.ccd_s_ns
    return {
        "rcd_read": t.rcd_read_ns,
        "rcd_write": t.rcd_write_ns,
        "ras": t.ras_ns,
        "rc": t.rc_ns,
        "rrd_s": t.rrd_s_ns,
        "rrd_l": t.rrd_l_ns,
        "faw": t.faw_ns,
        "rp": t.rp_ns,
        "ppd": 0.0,
        "ccd_s": t.ccd_s_ns,
        "ccd_l": t.ccd_l_ns,
        "rtp": t.rtp_ns,
        "wtp": t.cwl_ns + burst + t.wr_ns,
        "rtw": t.rtw_ns,
        "wtr_s": t.cwl_ns + burst + t.wtr_s_ns,
        "wtr_l": t.cwl_ns + burst + t.wtr_l_ns,
        "pre_to_ref": t.rp_ns,
        "act_to_ref": t.rc_ns,
        "rfc_ab": t.rfc_ab_ns,
        "rfc_pb": t.rfc_pb_ns,
        "rref": t.rrd_s_ns,
        "refi": t.refi_ns,
        "read_data": t.cl_ns + burst,
        "burst": burst,
    }
