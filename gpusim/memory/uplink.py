"""What SMs send shares ports on its way to the L2: the SM's own, its CPC's, its GPC's, and what the L2 takes of all.

Work is counted in cycles of an SM's port. A port that is not wide enough is shared evenly by those below it that have
something to send: the SMs of a CPC, the CPCs of a GPC, the GPCs (measured: experiments/measured/h200/sm_writes.csv). So
SMs of a small CPC send faster than others, and CTAs that were in step drift apart.

An SM sends one thing after another. Rates follow what goes on: who waits for the end of something looks again when it
should have come (`still_sending`). So it sees no sooner that others have ended before it, and what they left to it is
left to its next store. That was chosen: to look again half-way keeps CTAs of FlashAttention-2's backward so close
together that L2 reads are 12.6 % too few, where they are now 3.2 % (five of our own runs that are not held out).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from gpusim.jit import njit
from gpusim.spec import GpuSpec

_I64, _F64 = types.int64[::1], types.float64[::1]
FIELDS: list[tuple[str, Any]] = [
    ("cpc_of_sm", _I64),
    ("gpc_of_cpc", _I64),
    ("sms_of_cpc", _I64),  # CPC after CPC
    ("first_of_cpc", _I64),  # of `sms_of_cpc`, and one past the last
    ("cpc_senders", types.float64),  # SM ports that a CPC's is as wide as, at least one,
    ("gpc_senders", types.float64),  # a GPC's,
    ("all_senders", types.float64),  # and what the L2 takes
    ("send_left", _F64),  # per SM, cycles of its port
    ("send_total", _F64),  # per SM, the same of all that it was ever told to send
    ("sending_sms", _I64),  # per CPC: SMs with something left,
    ("sending_cpcs", _I64),  # per GPC: CPCs that have such,
    ("sending_gpcs", _I64),  # one element
    ("send_time", _F64),  # per CPC: when `send_left` of its SMs was true
    ("send_rate", _F64),  # per CPC: cycles of its port that each of its SMs got done per cycle from then on
]
MOVING = ("send_left", "sending_sms", "sending_cpcs", "sending_gpcs", "send_time")
"""Fields that say what is under way: all zero when nothing is."""
DONE = 1e-6
"""Less than this is nothing left."""


def start(gpu: GpuSpec) -> dict[str, Any]:
    """The fields' values when nothing is sent."""
    sm, noc = gpu.sm, gpu.noc
    cpc_of_sm = np.array(sm.cpc_of_sm, np.int64)
    members = [np.flatnonzero(cpc_of_sm == cpc) for cpc in range(int(cpc_of_sm.max()) + 1)]
    gpc_of_cpc = np.array([sm.gpc_of_sm[sms[0]] for sms in members], np.int64)
    return {
        "cpc_of_sm": cpc_of_sm,
        "gpc_of_cpc": gpc_of_cpc,
        "sms_of_cpc": np.concatenate(members),
        "first_of_cpc": np.concatenate([[0], np.cumsum([len(sms) for sms in members])]).astype(np.int64),
        "cpc_senders": _width(noc.cpc_uplink, max(map(len, members))),
        "gpc_senders": _width(noc.gpc_uplink, sm.count / len(set(sm.gpc_of_sm))),
        "all_senders": _width(noc.uplink, sm.count),
        "send_left": np.zeros(sm.count),
        "send_total": np.zeros(sm.count),
        "sending_sms": np.zeros(len(members), np.int64),
        "sending_cpcs": np.zeros(int(gpc_of_cpc.max()) + 1, np.int64),
        "sending_gpcs": np.zeros(1, np.int64),
        "send_time": np.zeros(len(members)),
        "send_rate": np.zeros(len(members)),
    }


def _width(share: float, sms: float) -> float:
    """A port's width in SM ports: a share of those of so many SMs; no limit where it takes all that they send."""
    return max(1.0, share * sms) if share < 1 else np.inf


@njit
def _rate(m: Any, cpc: int) -> float:
    """What of its port's rate each sending SM of a CPC gets now."""
    of_gpc = min(m.gpc_senders, m.all_senders / max(1, m.sending_gpcs[0]))
    of_cpc = min(m.cpc_senders, of_gpc / max(1, m.sending_cpcs[m.gpc_of_cpc[cpc]]))
    return min(1.0, of_cpc / max(1, m.sending_sms[cpc]))


@njit
def _count(m: Any, cpc: int, change: int) -> None:
    """One SM of a CPC more or less sends."""
    gpc, before = m.gpc_of_cpc[cpc], m.sending_sms[cpc]
    m.sending_sms[cpc] += change
    if before == 0 or m.sending_sms[cpc] == 0:
        before = m.sending_cpcs[gpc]
        m.sending_cpcs[gpc] += change
        if before == 0 or m.sending_cpcs[gpc] == 0:
            m.sending_gpcs[0] += change


@njit
def _advance(m: Any, cpc: int, now: float) -> None:
    """Account for what a CPC has sent until `now`, at the mean of the rates then and now."""
    elapsed = now - m.send_time[cpc]
    if elapsed <= 0:
        return
    sent = elapsed * 0.5 * (m.send_rate[cpc] + _rate(m, cpc))
    m.send_time[cpc] = now
    for at in range(m.first_of_cpc[cpc], m.first_of_cpc[cpc + 1]):
        sm = m.sms_of_cpc[at]
        if m.send_left[sm] > 0:
            m.send_left[sm] -= sent
            if m.send_left[sm] <= DONE:
                m.send_left[sm] = 0
                _count(m, cpc, -1)
    m.send_rate[cpc] = _rate(m, cpc)


@njit
def still_sending(m: Any, sm: int, until: float, now: float) -> float:
    """When an SM may have sent what it was told to before `send_total` was more than `until`; `now` if it has."""
    cpc = m.cpc_of_sm[sm]
    _advance(m, cpc, now)
    left = m.send_left[sm] - (m.send_total[sm] - until)
    return now + left / m.send_rate[cpc] if left > DONE else now


@njit
def send(m: Any, sm: int, cycles: float, now: float) -> float:
    """Have an SM send `cycles` of its port's time from `now` on; returns when it may be done."""
    cpc = m.cpc_of_sm[sm]
    _advance(m, cpc, now)
    if m.send_left[sm] == 0 and cycles > DONE:
        _count(m, cpc, 1)
    m.send_left[sm] += cycles
    m.send_total[sm] += cycles
    m.send_rate[cpc] = _rate(m, cpc)
    return still_sending(m, sm, m.send_total[sm], now)
