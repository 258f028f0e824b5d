"""Do the patterns move exactly the bytes that arithmetic says, at the SM ports of the machine?"""

from __future__ import annotations

from typing import Any

import pytest

from experiments.micro import capacity, chase, fabric, merging, scaling, volume, writeback
from experiments.micro.pattern import MIB, Pattern, every
from gpusim.machine import simulate
from gpusim.spec import GpuSpec, load_gpu
from traces.tensor import TensorTable


@pytest.fixture(scope="module")
def gpu() -> GpuSpec:
    return load_gpu("h200")


def _moved(pattern: Pattern, gpu: GpuSpec) -> dict[str, tuple[int, int]]:
    """Bytes read and written by kernel, all conservation checks on."""
    kernels = simulate(pattern, gpu, check=True).kernels
    return {k.name: (k.sm_read_bytes, k.sm_write_bytes) for k in kernels}


@pytest.mark.parametrize("mib", [1, 5])  # fewer pieces than CTAs, and no multiple of them
def test_does_a_capacity_run_read_each_byte_once_a_pass(gpu: GpuSpec, mib: int) -> None:
    size = mib * MIB
    assert _moved(capacity.reads(mib), gpu) == {
        f"read_fixed_warm2 {mib} MiB": (2 * size, 0),
        f"read_fixed {mib} MiB": (8 * size, 0),
        f"read_shifted_warm2 {mib} MiB": (2 * size, 0),
        f"read_shifted {mib} MiB": (8 * size, 0),
    }


def test_do_the_sizes_follow_each_other_in_one_buffer(gpu: GpuSpec) -> None:
    moved = _moved(capacity.reads_and_writes([1, 3]), gpu)
    assert moved["fill"] == (0, 3 * MIB)
    for mib in (1, 3):
        assert moved[f"read_fixed {mib} MiB"] == moved[f"read_shifted {mib} MiB"] == (8 * mib * MIB, 0)
        assert moved[f"write_first {mib} MiB"] == moved[f"write_again {mib} MiB"] == (0, mib * MIB)


def test_does_a_size_find_dirty_what_the_one_before_wrote(gpu: GpuSpec) -> None:
    fill, *_, again = simulate(capacity.reads_and_writes([8]), gpu).kernels
    assert fill.dirty_bytes["buffer"] == again.dirty_bytes["buffer"] == 8 * MIB
    (write,) = [k for k in simulate(capacity.reads_and_writes([1, 28]), gpu).kernels if k.name == "write_first 1 MiB"]
    assert write.dirty_bytes["buffer"] > 24 * MIB  # of the fill


@pytest.mark.parametrize("shift", [0, 37])
def test_are_the_pieces_of_every_pass_shared_out_without_overlap(shift: int) -> None:
    pattern = capacity.reads(9)
    launch = {k.name: k for k in pattern.launches}["read_shifted 9 MiB" if shift else "read_fixed 9 MiB"]
    work = [launch.work(cta) for cta in range(launch.ctas)]
    for r in range(capacity.PASSES):
        owners: dict[int, int] = {}
        for cta, items in enumerate(work):
            (view,) = items[r].views
            for row in range(view.row, pattern.tensors[0].rows, capacity.CTAS):
                assert owners.setdefault(row, cta) == cta
                assert row % capacity.CTAS == (cta + shift * r) % capacity.CTAS
        assert sorted(owners) == list(range(9 * 64))


def test_are_the_rows_written_once_by_the_small_ctas() -> None:
    launch = capacity.reads_and_writes([17]).launches[-1]
    touched = []
    for cta in range(launch.ctas):
        (view,) = launch.work(cta)[0].views
        touched += [view.address + row * view.pitch_bytes for row in range(view.rows)]
        assert view.cols * 4 == 4096
    base = min(touched)
    assert sorted(touched) == [base + 4096 * i for i in range(17 * MIB // 4096)]


def test_does_every_cta_read_all(gpu: GpuSpec) -> None:
    few = capacity.FEW_CTAS
    assert _moved(capacity.read_all(1), gpu) == {"read_all_first": (few * MIB, 0), "read_all": (264 * MIB, 0)}
    assert {gpu.sm.partition_of_sm[sm] for sm in gpu.sm.placement(few)} == {0, 1}


@pytest.mark.parametrize(("readers", "writers"), (("one", ""), ("", "both"), ("one", "other"), ("both", "both")))
def test_do_sms_of_partitions_read_and_write_their_shares(gpu: GpuSpec, readers: str, writers: str) -> None:
    of_sm = gpu.sm.partition_of_sm
    sms = {"": [], "both": list(range(gpu.sm.count))}
    sms |= {name: [sm for sm, own in enumerate(of_sm) if own == number] for number, name in enumerate(("one", "other"))}
    pattern = fabric.read_and_write(sms[readers], sms[writers], 2, 1, gpu.sm.cta_order)
    assert _moved(pattern, gpu) == {"read_and_write": (2 * MIB if readers else 0, MIB if writers else 0)}


def test_are_evicted_and_written_bytes_those_of_the_steps(gpu: GpuSpec) -> None:
    moved = _moved(writeback.writeback([4, 6], evict_mib=8), gpu)
    assert moved["evict"] == (8 * MIB, 0)
    for mib in (4, 6):
        assert moved[f"write {mib} MiB"] == (0, mib * MIB)
        assert moved[f"read back same {mib} MiB"] == moved[f"read back other {mib} MiB"] == (mib * MIB, 0)


def test_is_the_default_eviction_complete(gpu: GpuSpec) -> None:
    kernels = simulate(writeback.writeback([30]), gpu).kernels
    assert kernels[1].dirty_bytes["buffer"] > 0 and kernels[-1].dirty_bytes["buffer"] == 0


@pytest.mark.parametrize(("ctas", "skew"), [(132, 0), (132, 200), (264, 0)])
def test_do_skewed_ctas_read_all_tiles(gpu: GpuSpec, ctas: int, skew: int) -> None:
    pattern = merging.lockstep(skew, ctas, gpu.sm.fp32_lanes, tiles=2)
    assert _moved(pattern, gpu) == {pattern.algorithm: (ctas * 2 * merging.TILE_BYTES, 0)}


def test_is_the_skew_as_long_as_it_says(gpu: GpuSpec) -> None:
    def cycles(skew: int) -> float:
        # The data is in the L2, or the last CTA would find what the first have fetched.
        return simulate(merging.lockstep(skew, 132, gpu.sm.fp32_lanes, tiles=1), gpu, l2="warm").kernels[0].cycles

    assert cycles(1000) - cycles(0) == pytest.approx(131 * 1000, rel=0.02)


def test_does_a_chase_load_a_sector_a_time_and_last_as_long_as_its_latencies(gpu: GpuSpec) -> None:
    touch, follow = simulate(chase.chase(64 << 10, 2048), gpu).kernels
    assert (touch.sm_read_bytes, follow.sm_read_bytes) == (2 * (64 << 10), 2048 * 32)
    latency = (follow.cycles - gpu.sm.kernel_overhead_cycles) / 2048
    assert gpu.l2.latency_cycles <= latency < 1.05 * gpu.l2.latency_cycles


def test_does_a_chase_visit_every_line_before_any_again() -> None:
    lines = chase.chase_lines(100, 250)
    assert sorted(lines[:100]) == sorted(lines[100:200]) == list(range(100)) and lines[:50] == lines[200:]
    assert lines[:100] != list(range(100))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (scaling.from_l2(range(3), 132), {"touch": (3 * 65536, 0), "read": (24 * 3 * 65536, 0)}),
        (scaling.from_l2((5, 0), 8, 256, 1), {"touch": (2 * 65536, 0), "read": (24 * 2 * 65536, 0)}),
        (scaling.from_dram(2, 64), {"read": (2 * 4 * 24 * 64 * 16, 0)}),
        (scaling.copy(4, 264), {"copy before": (MIB, MIB), "copy": (4 * MIB, 4 * MIB)}),
        (scaling.write(4, 264), {"write before": (0, MIB), "write": (0, 4 * MIB)}),
        (scaling.blocks(300, 96, 0, True), {"blocks": (300 * 96 * 8, 300 * 96 * 8)}),
        (scaling.blocks(300, 96, 0, False), {"blocks": (300 * 96 * 8, 0)}),
        (volume.volume(3, 20), {"touch": (5 * (512 << 10), 0), "read": (20 * (512 << 10), 0)}),
        (volume.shared(100 << 10, 7), {"touch": (700 << 10, 0), "read": (700 << 10, 0)}),
    ],
    ids=lambda value: value.algorithm if isinstance(value, Pattern) else "",
)
def test_do_the_other_patterns_move_what_arithmetic_says(gpu: GpuSpec, pattern: Pattern, expected: Any) -> None:
    assert _moved(pattern, gpu) == expected


def test_is_no_row_past_the_end_taken() -> None:
    table = TensorTable()
    data = capacity.buffer(table, "x", 10 * 1024, 1024)
    assert [every(data, first, 4).rows for first in (0, 1, 2, 9, 10, 30)] == [3, 3, 2, 1, 0, 0]
    with pytest.raises(ValueError, match="whole number of rows"):
        capacity.buffer(table, "y", 1000, 1024)
