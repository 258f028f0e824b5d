"""Does DRAM obey its bus, its rows, its activates and its refresh?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from gpusim.memory.access import read_tile
from gpusim.memory.dram import after_refresh, dram_read, dram_write, open_row, pseudo_channel
from gpusim.memory.state import MemorySystem
from tests.gpusim.memory.systems import MIB, system

UNBOUND = (
    "l2.size=0",
    "sm.read_port=1e9B/clk",
    "sm.write_port=1e9B/clk",
    "sm.max_inflight=1GiB",
    "l2.slice_bandwidth=1e9B/clk",
    "noc.fabric_bandwidth=inf",
)
"""A machine in which nothing but DRAM can be slow."""


@pytest.fixture
def memory() -> MemorySystem:
    return system("l2.size=1MiB", sizes=(64 * MIB,))


def lines_of_one_channel(memory: MemorySystem, count: int) -> list[int]:
    """Lines that pseudo-channel 0 of slice 0 serves, in address order, whatever else they are."""
    found: list[int] = []
    line = 0
    while len(found) < count:
        if pseudo_channel(memory.state, line, 0, 0) == 0:
            found.append(line)
        line += 1
    return found


def rows_by_bank(memory: MemorySystem, banks: int, rows: int) -> list[list[int]]:
    """For `banks` banks of pseudo-channel 0, one line of each of `rows` rows; found by opening rows and looking."""
    by_bank: dict[int, dict[int, int]] = defaultdict(dict)
    v, step = memory.values, memory.values["row_lines"]
    line = 0
    while sum(len(x) >= rows for x in by_bank.values()) < banks:
        if pseudo_channel(memory.state, line, 0, 0) == 0:
            before = v["bank_free"].copy()
            open_row(memory.state, 0, line, 1e9 * (line + 1))
            changed = np.flatnonzero(v["bank_free"] != before)
            if len(changed):
                bank = int(changed[0])
                by_bank[bank].setdefault(int(v["open_row"][2 * bank]), line)
        line += step
    v["bank_free"][:], v["activate_free"][:], v["open_row"][:] = 0, 0, -1
    return [list(x.values())[:rows] for x in by_bank.values() if len(x) >= rows][:banks]


def test_does_sequential_streaming_reach_nine_tenths_of_what_refresh_leaves() -> None:
    memory = system(*UNBOUND, sizes=(64 * MIB,))
    tensor, timing = memory.tensors[0], memory.gpu.hbm.timing
    end = 0.0
    for start in range(tensor.base, tensor.end, MIB):
        end = max(end, read_tile(memory.state, 0, 0, start, 1, MIB, MIB, 0, 1, 0.0))
    share = tensor.size_bytes / (end - memory.gpu.hbm.latency_cycles) / memory.gpu.hbm_bytes_per_clk
    awake = 1 - timing.rfc_ab_ns / timing.refi_ns
    assert 0.9 * awake <= share <= 1.01 * awake


@pytest.mark.parametrize("spread", (0.0, 5.0, 500.0))
def test_is_the_bus_never_faster_than_its_peak(memory: MemorySystem, spread: float) -> None:
    random = np.random.default_rng(0)
    lines = random.choice(lines_of_one_channel(memory, 3000), 2000)
    times, sectors = np.sort(random.uniform(0, spread * 2000, 2000)), random.integers(1, 5, 2000)
    burst = memory.values["burst_cycles"]
    work, last = 0.0, 0.0
    for line, t, count in zip(lines.tolist(), times.tolist(), sectors.tolist(), strict=True):
        delay = dram_read(memory.state, line, 0, 0, count, t)
        work += count * burst
        last = max(last, t + delay)
        assert delay >= count * burst * (1 - 1e-9)
        assert last - times[0] >= work * (1 - 1e-9)


def test_do_hits_in_one_row_take_the_bus_time_only(memory: MemorySystem) -> None:
    (row,) = rows_by_bank(memory, 1, 1)
    start = memory.values["refresh_cycles"] + 1
    delays = [dram_read(memory.state, row[0], 0, 0, 4, start) for _ in range(8)]
    burst = memory.values["burst_cycles"]
    assert np.allclose(delays, [4 * burst * (i + 1) for i in range(8)])


def test_is_one_bank_limited_by_its_row_cycle(memory: MemorySystem) -> None:
    (rows,) = rows_by_bank(memory, 1, 6)
    start = memory.values["refresh_cycles"] + 1
    opened = [open_row(memory.state, 0, line, start) for line in rows]
    assert np.allclose(np.diff(opened), memory.values["row_cycles"])
    delays = [dram_read(memory.state, line, 0, 0, 1, 1e6 + start) for line in rows]
    assert delays[-1] >= (len(rows) - 1) * memory.values["row_cycles"] * (1 - 1e-9)


def test_do_rows_of_other_banks_open_side_by_side_at_the_rate_of_activates(memory: MemorySystem) -> None:
    banks = rows_by_bank(memory, 8, 1)
    start = memory.values["refresh_cycles"] + 1
    opened = [open_row(memory.state, 0, lines[0], start) for lines in banks]
    gaps = np.diff(opened)
    assert np.allclose(gaps, memory.values["activate_cycles"])
    assert memory.values["activate_cycles"] < memory.values["row_cycles"] / 4


def test_does_a_row_miss_cost_what_a_hit_does_not(memory: MemorySystem) -> None:
    ((first, second),) = rows_by_bank(memory, 1, 2)
    quiet = 1e6
    missed = open_row(memory.state, 0, first, quiet) - quiet
    again = open_row(memory.state, 0, first, 2 * quiet) - 2 * quiet
    other = open_row(memory.state, 0, second, 3 * quiet) - 3 * quiet
    assert missed == pytest.approx(memory.values["row_miss_cycles"]) and other == pytest.approx(missed) and again == 0


def test_does_nothing_start_during_a_refresh(memory: MemorySystem) -> None:
    interval, length = memory.values["refresh_interval"], memory.values["refresh_cycles"]
    for t in np.random.default_rng(1).uniform(0, 20 * interval, 500).tolist():
        start = after_refresh(memory.state, t)
        assert t <= start <= t + length
        assert start % interval >= length * (1 - 1e-9) or start % interval < 1e-6
        assert start == t or t % interval < length
    assert after_refresh(memory.state, interval) == pytest.approx(interval + length)


def test_do_posted_writes_cost_the_bus_their_bytes_and_a_turnaround_per_batch(memory: MemorySystem) -> None:
    v = memory.values
    start = v["refresh_cycles"] + 1
    lines = lines_of_one_channel(memory, 200)
    busy = v["bus_free"][0]
    for number, line in enumerate(lines[:40]):
        delay = dram_write(memory.state, line, 0, 0, 4, start)
        batches = 4 * (number + 1) // v["write_batch"]
        queued = 4 * (number + 1) % v["write_batch"]
        assert v["write_queue"][0] == queued
        drained = 4 * (number + 1) - queued
        busy = drained * v["burst_cycles"] + batches * v["turnaround_cycles"]
        if start + busy < v["refresh_interval"]:
            assert delay == pytest.approx(busy)
    assert v["bus_free"][0] - start >= busy * (1 - 1e-9)


def test_do_lines_spread_over_all_channels_evenly() -> None:
    memory = system(*UNBOUND, sizes=(64 * MIB,))
    tensor = memory.tensors[0]
    read_tile(memory.state, 0, 0, tensor.base, 1, tensor.size_bytes, tensor.size_bytes, 0, 1, 0.0)
    busy = memory.values["bus_free"]
    assert busy.min() > 0.93 * busy.max()
