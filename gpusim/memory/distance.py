"""How much longer a request takes to the L2 from one SM than from another.

Each next CPC of a GPC is `noc.cpc_step` cycles further away, each next TPC of a CPC `noc.tpc_step` cycles nearer
(measured: experiments/measured/h200/sm_latency.csv). A few cycles, but SMs that read the same lines one after another
drift apart by them, meet, and from then on share requests: those that merge get their data at the same time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpusim.spec import GpuSpec

SMS_OF_TPC = 2


def request_delays(gpu: GpuSpec) -> NDArray[np.float64]:
    """Per SM, the cycles that a request takes more (or, below 0, less) than the mean SM's, whose `l2.latency` is.

    Less decides who comes first where requests merge; alone a request takes no less than `l2.latency`
    (`gpusim.memory.l2.read`: nothing is sent before the access).
    """
    cpc_of_sm = np.array(gpu.sm.cpc_of_sm)
    gpc_of_sm = np.array(gpu.sm.gpc_of_sm)
    delays = np.zeros(gpu.sm.count)
    for gpc in np.unique(gpc_of_sm):
        for number, cpc in enumerate(np.unique(cpc_of_sm[gpc_of_sm == gpc])):
            sms = np.flatnonzero(cpc_of_sm == cpc)
            tpc = np.arange(len(sms)) // SMS_OF_TPC
            delays[sms] = number * gpu.noc.cpc_step_cycles - tpc * gpu.noc.tpc_step_cycles
    return delays - delays.mean()
