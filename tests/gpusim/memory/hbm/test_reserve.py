"""Does the simulator's HBM agree with its plain-Python form, and obey bus, banks, activates, groups and refresh?"""

from __future__ import annotations

import numpy as np
import pytest

from gpusim.memory.access import read_tile
from gpusim.memory.hbm.reserve import dram_read, dram_write, place_in_channels, read_bursts, refresh_start, write_bursts
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.hbm.servers import PseudoChannel
from tests.gpusim.memory.systems import MIB, system

UNBOUND = (
    "l2.size=0",
    "noc.gpc_port=1000000B/clk",
    "sm.read_port=1e9B/clk",
    "sm.write_port=1e9B/clk",
    "sm.max_inflight=1GiB",
    "l2.slice_bandwidth=1e9B/clk",
    "noc.fabric_bandwidth=inf",
)
"""A machine in which nothing but DRAM can be slow."""
PLAIN = ("hbm.refresh=none", "hbm.read_efficiency=1", "hbm.write_efficiency=1")
REFRESHES = ("none", "all_bank", "per_bank")


def hbm(*overrides: str) -> MemorySystem:
    return system("l2.size=1MiB", *overrides, sizes=(64 * MIB,))


@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize("gap", (0.3, 4.0, 40.0))
@pytest.mark.parametrize("writes", (0.0, 0.4))
def test_does_it_agree_with_plain_servers(refresh: str, gap: float, writes: float) -> None:
    memory = hbm(f"hbm.refresh={refresh}", "hbm.write_queue=40")
    random = np.random.default_rng(0)
    plain = [PseudoChannel(n, memory.values, refresh) for n in range(3)]
    t = 0.0
    for _ in range(3000):
        t += float(random.exponential(gap))
        pc, bank, row, bursts = (int(random.integers(n)) for n in (3, 16, 3, 4))
        writing = random.random() < writes
        ours = (write_bursts if writing else read_bursts)(memory.state, 16 * pc + bank, row, bursts + 1, t)
        expected = (plain[pc].write if writing else plain[pc].read)(bank, row, bursts + 1, t)
        assert ours == pytest.approx(expected, rel=1e-12)


def test_does_sequential_streaming_reach_nine_tenths_of_what_refresh_leaves() -> None:
    memory = system(*UNBOUND, "hbm.refresh=all_bank", "hbm.read_efficiency=1", sizes=(64 * MIB,))
    tensor, timing = memory.tensors[0], memory.gpu.hbm.timing
    end = 0.0
    for start in range(tensor.base, tensor.end, MIB):
        end = max(end, read_tile(memory.state, 0, 0, start, 1, MIB, MIB, 0, 1, 0.0))
    share = tensor.size_bytes / (end - memory.gpu.hbm.latency_cycles) / memory.gpu.hbm_bytes_per_clk
    awake = 1 - timing.rfc_ab_ns / timing.refi_ns
    assert 0.9 * awake <= share <= 1.01 * awake


@pytest.mark.parametrize("spread", (0.0, 5.0, 500.0))
def test_is_the_bus_never_faster_than_its_peak(spread: float) -> None:
    memory = hbm()
    random = np.random.default_rng(0)
    times, bursts = np.sort(random.uniform(0, spread * 2000, 2000)), random.integers(1, 5, 2000)
    work, last = 0.0, 0.0
    for t, count in zip(times.tolist(), bursts.tolist(), strict=True):
        done = read_bursts(memory.state, int(random.integers(16)), int(random.integers(9)), count, t)
        work += count * memory.values["burst_cycles"]
        last = max(last, done)
        assert done - t >= count * memory.values["burst_cycles"] * (1 - 1e-9)
        assert last - times[0] >= work * (1 - 1e-9)


def test_do_hits_in_two_groups_take_the_bus_time_only_and_in_one_group_twice_that() -> None:
    memory = hbm(*PLAIN)
    for bank in (0, 1, 4):
        read_bursts(memory.state, bank, 7, 1, 0.0)
    burst = memory.values["burst_cycles"]
    apart = [read_bursts(memory.state, bank, 7, 1, 1e6) for bank in (0, 4) * 20]
    assert np.allclose(np.diff(apart), burst)
    together = [read_bursts(memory.state, bank, 7, 1, 2e6) for bank in (0, 1) * 20]
    assert np.allclose(np.diff(together), memory.values["rules"].ccd_l)


def test_is_one_bank_bound_by_its_row_cycle() -> None:
    memory = hbm(*PLAIN)
    done = [read_bursts(memory.state, 3, row, 1, 1e6) for row in range(50)]
    r = memory.values["rules"]
    assert np.diff(done)[1:] == pytest.approx(max(r.rc, r.rcd_read + r.rtp + r.rp))


def test_are_random_reads_bound_by_the_window_of_four_activates() -> None:
    """Every access opens a row: 4 of them per tFAW at most; 16 banks of one row per tRC are not tighter."""
    memory = hbm(*PLAIN)
    random = np.random.default_rng(0)
    r = memory.values["rules"]
    count = 8000
    done = max(read_bursts(memory.state, int(random.integers(16)), 10 + n, 1, 0.0) for n in range(count))
    bound = max(count * r.faw / 4, count * r.rc / 16)
    assert bound == count * r.faw / 4
    assert bound <= done - r.rp <= 1.35 * bound  # 16 banks at random are not evenly loaded


def test_does_a_row_miss_cost_what_a_hit_does_not_and_does_an_old_row_let_others_join() -> None:
    memory = hbm(*PLAIN)
    v, burst = memory.values, memory.values["burst_cycles"]
    assert read_bursts(memory.state, 0, 1, 1, 1e6) - 1e6 == pytest.approx(burst)
    read_bursts(memory.state, 0, 2, 1, 2e6)
    assert v["open_row"][0] == 2 and v["row_before"][0] == 1
    read_bursts(memory.state, 0, 1, 1, 2e6 + 100)
    assert v["open_row"][0] == 2, "row 1 would have been served first"
    read_bursts(memory.state, 0, 1, 1, 2e6 + v["reorder_window"] + 100)
    assert v["open_row"][0] == 1


def test_does_a_refreshing_bank_keep_its_row_shut_until_it_ends() -> None:
    memory = hbm("hbm.refresh=per_bank")
    r = memory.values["rules"]
    start = refresh_start(memory.state, 5, 10 * r.refi)
    assert start <= 10 * r.refi < start + r.refi
    assert refresh_start(memory.state, 5, start + r.refi * 0.999) == pytest.approx(start)
    read_bursts(memory.state, 5, 7, 1, start - 1000.0)
    read_bursts(memory.state, 5, 7, 1, start + 1.0)
    assert memory.values["bank_act"][5] == pytest.approx(start + r.rfc_pb)


def test_do_writes_cost_a_turnaround_per_batch_only_where_something_was_read() -> None:
    memory = hbm(*PLAIN, "hbm.write_queue=100")
    v, t = memory.values, 1e6
    for number in range(400):
        if number == 200:
            read_bursts(memory.state, 9, 1, 1, t)
        write_bursts(memory.state, 4 * (number % 4), 1, 1, t)
    # 80 queued bursts go down to 20, then every 60
    drained = 60 * (1 + (400 - 80) // 60)
    work = drained * v["write_bus_cycles"] + v["read_bus_cycles"] + v["turnaround_cycles"]
    assert v["bus_free"][0] == pytest.approx(t + work)
    assert v["write_queue"][0] == 400 - drained


@pytest.mark.parametrize("mapping", ("permuted", "bgi2pc", "default2pc"))
def test_does_every_mapping_put_each_sector_on_a_bus(mapping: str) -> None:
    memory = hbm(*PLAIN, f"hbm.mapping={mapping}", "hbm.write_queue=1")
    for line in range(5000):
        dram_read(memory.state, line, 0, 3, 4, 0.0)
        dram_write(memory.state, line, 1, 4, 3, 0.0)
    v = memory.values
    turns = 5000 * 3 if mapping == "bgi2pc" else 5000
    work = 5000 * (4 * v["read_bus_cycles"] + 3 * v["write_bus_cycles"])
    assert work * (1 - 1e-9) <= v["bus_free"].sum() <= work + turns * v["turnaround_cycles"]
    assert np.flatnonzero(v["bus_free"]).tolist() == [6, 7, 102, 103]


def test_has_every_slice_its_own_share_of_the_channels() -> None:
    memory = hbm()
    v = memory.values
    channels = {place_in_channels(memory.state, 0, p, s)[0] for p in range(2) for s in range(v["slices"])}
    assert channels == set(range(94))


def test_do_lines_spread_over_all_channels_evenly() -> None:
    memory = system(*UNBOUND, sizes=(64 * MIB,))
    tensor = memory.tensors[0]
    read_tile(memory.state, 0, 0, tensor.base, 1, tensor.size_bytes, tensor.size_bytes, 0, 1, 0.0)
    busy = memory.values["bus_free"]
    assert busy.min() > 0.93 * busy.max()


def test_is_every_run_the_same() -> None:
    def run() -> list[float]:
        memory = hbm()
        random = np.random.default_rng(3)
        lines = random.integers(0, 1 << 19, 3000).tolist()
        return [dram_read(memory.state, line, line % 2, line % 47, 4, 2.0 * n) for n, line in enumerate(lines)]

    assert run() == run()
