"""Who waits for whom between an SM and memory: slots for lines in flight, a GPC's port, the fabric?"""

from __future__ import annotations

import pytest

from gpusim.counters import C
from gpusim.memory.access import read_tile, write_tile
from tests.gpusim.memory.systems import KIB, system


def test_do_the_sms_of_a_gpc_share_its_port_and_those_of_another_not() -> None:
    memory = system("noc.gpc_port=64B/clk", "sm.gpcs=2", "sm.read_port=64B/clk", "sm.max_inflight=1MiB")
    tile = (memory.tensors[0].base, 1, 32 * KIB, 32 * KIB)
    of_gpc = [[sm for sm in range(8) if memory.gpu.sm.gpc_of_sm[sm] == gpc] for gpc in (0, 1)]
    for sm in (of_gpc[0][0], of_gpc[0][1], of_gpc[1][0]):
        read_tile(memory.state, sm, 0, *tile, 0, 1, 0.0)  # now all that is read below is in the L2
    start = 1e6
    first, second = (read_tile(memory.state, sm, 0, *tile, 0, 1, start) - start for sm in of_gpc[0][:2])
    alone = 32 * KIB / 64
    assert second == pytest.approx(memory.gpu.l2.latency_cycles + 2 * alone) and second >= first + 0.9 * alone
    other = read_tile(memory.state, of_gpc[1][0], 0, *tile, 0, 1, start) - start
    assert other < second


def test_does_merged_data_pass_a_gpcs_port_once() -> None:
    memory = system("noc.gpc_port=64B/clk", "sm.gpcs=1", "noc.coalescer=merge", "sm.max_inflight=1MiB")
    tile = (memory.tensors[0].base, 1, 4 * KIB, 4 * KIB)
    group = [sm for sm in range(8) if memory.gpu.sm.merge_group_of_sm[sm] == memory.gpu.sm.merge_group_of_sm[0]]
    for now in (0.0, 1e6):  # from memory, then from the L2
        for sm in group:
            read_tile(memory.state, sm, 0, *tile, 0, 1, now)
    latency = memory.gpu.l2.latency_cycles
    assert len(group) > 1
    assert memory.values["gpc_free"][0] == pytest.approx(1e6 + latency + 4 * KIB / 64)


def test_does_a_line_that_waits_for_refresh_hold_up_only_the_one_that_takes_its_slot() -> None:
    """Two lines at a time: the third waits for the first, the fourth for the second, and not for each other."""
    memory = system("l2.size=1MiB", "sm.max_inflight=256", "hbm.refresh=none")
    base, v = memory.tensors[0].base, memory.values
    v["inflight"][:2] = 5000.0, 1000.0  # of SM 0: what its two slots are waiting for
    end = read_tile(memory.state, 0, 0, base, 1, 2 * 128, 128, 0, 1, 0.0)
    first, second = v["inflight"][:2].tolist()
    assert end == pytest.approx(first, abs=2 * 128 / memory.gpu.sm.read_port_bytes_per_clk)
    assert first > 5000 + memory.gpu.l2.latency_cycles > second > 1000 + memory.gpu.l2.latency_cycles


@pytest.mark.parametrize("writer", ("same partition", "other partition"))
def test_do_reads_and_writes_share_the_fabric_in_one_direction_only(writer: str) -> None:
    """What SM 0 reads from the other partition goes the way of what SMs there write to its own."""
    memory = system("noc.fabric_bandwidth=100GB/s", "sm.read_port=1KB/clk", "sm.max_inflight=4MiB", "hbm.refresh=none")
    of_sm, size = memory.gpu.sm.partition_of_sm, 256 * KIB
    sm = next(sm for sm in range(1, 8) if (of_sm[sm] == of_sm[0]) == (writer == "same partition"))
    alone = system("noc.fabric_bandwidth=100GB/s", "sm.read_port=1KB/clk", "sm.max_inflight=4MiB", "hbm.refresh=none")
    before = read_tile(alone.state, 0, 0, alone.tensors[0].base, 1, size, size, 0, 1, 0.0)
    write_tile(memory.state, sm, 1, memory.tensors[1].base, 1, size, size, 0.0)
    after = read_tile(memory.state, 0, 0, memory.tensors[0].base, 1, size, size, 0, 1, 0.0)
    crossing = int(memory.values["counters"][1, C.FABRIC_WRITE]) * memory.values["fabric_cycles"]
    assert crossing > 1000
    assert after - before == pytest.approx(crossing if writer == "other partition" else 0, abs=0.05 * crossing)


def test_has_an_sm_sent_a_store_when_the_l2_has_taken_it() -> None:
    memory = system("noc.fabric_bandwidth=40GB/s")
    size = 64 * KIB
    end = write_tile(memory.state, 0, 0, memory.tensors[0].base, 1, size, size, 0.0)
    crossed = int(memory.values["counters"][0, C.FABRIC_WRITE])
    assert end == pytest.approx(crossed * memory.values["fabric_cycles"], rel=0.01)
    assert end > size / memory.gpu.sm.write_port_bytes_per_clk
