"""Does a GPU stay a GPU when one of its figures is changed?"""

from __future__ import annotations

import math

import pytest

from gpusim.spec import load_gpu


def test_does_nothing_follow_from_restating_a_figure() -> None:
    same = ["sm.count=132", "sm.shared_memory=228KiB", "l2.size=60MiB", "l2.partitions=2", "hbm.stacks=6"]
    gpu, restated = load_gpu("h200"), load_gpu("h200", same)
    assert restated == gpu
    assert not [key for key, text in restated.sources.items() if text.startswith("follows")]


def test_do_more_sms_keep_what_each_sm_has() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["sm.count=144"])
    assert more.sm.cta_order == (*gpu.sm.cta_order, *range(132, 144))
    assert more.sm.partition_of_sm[:132] == gpu.sm.partition_of_sm
    assert len(more.sm.partition_of_sm) == 144
    assert more.sm.registers == gpu.sm.registers
    assert more.peak_flops("fp16") == pytest.approx(gpu.peak_flops("fp16") * 144 / 132)


def test_do_fewer_sms_keep_the_launch_order_of_those_left() -> None:
    order = load_gpu("h200", ["sm.count=100"]).sm.cta_order
    assert sorted(order) == list(range(100))
    assert order[:4] == (0, 1, 16, 17)


def test_do_more_stacks_bring_channels_bandwidth_and_memory() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["hbm.stacks=12"])
    assert more.hbm.channels == 188
    assert more.hbm.bandwidth_bytes_per_s == pytest.approx(2 * gpu.hbm.bandwidth_bytes_per_s)
    assert more.hbm.size_bytes == 2 * gpu.hbm.size_bytes
    assert more.hbm.burst_ns == pytest.approx(gpu.hbm.burst_ns)


def test_does_a_given_bandwidth_win_over_the_stacks() -> None:
    for overrides in (["hbm.stacks=8", "hbm.bandwidth=8TB/s"], ["hbm.bandwidth=8TB/s", "hbm.stacks=8"]):
        assert load_gpu("h200", overrides).hbm.bandwidth_bytes_per_s == 8e12


def test_does_more_bandwidth_make_each_channel_faster_but_no_cell_array() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["hbm.bandwidth=9.628TB/s"])
    assert more.hbm.channels == gpu.hbm.channels
    assert more.hbm.burst_ns == pytest.approx(gpu.hbm.burst_ns / 2)
    assert more.hbm.timing.ccd_s_ns == pytest.approx(gpu.hbm.timing.ccd_s_ns / 2)
    assert more.hbm.timing.rc_ns == gpu.hbm.timing.rc_ns


def test_does_a_given_timing_stay_as_given() -> None:
    assert load_gpu("h200", ["hbm.timing.ccd_s=3ns", "hbm.bandwidth=9TB/s"]).hbm.timing.ccd_s_ns == 3


@pytest.mark.parametrize("standard", ("HBM3", "HBM3e"))
def test_has_memory_of_a_named_standard_no_timing_that_was_measured_on_the_base(standard: str) -> None:
    own, other = load_gpu("h200").hbm.timing, load_gpu("h200", [f"hbm.standard={standard}"]).hbm.timing
    assert (own.rfc_pb_ns, own.refi_ns) == (290, 1990), "measured on the H200"
    assert (other.rfc_pb_ns, other.refi_ns) == (200, 3900), "of the standard"
    kept = load_gpu("h200", [f"hbm.standard={standard}", "hbm.timing.rfc_pb=250ns"]).hbm.timing
    assert kept.rfc_pb_ns == 250


def test_does_another_standard_keep_the_bus_width() -> None:
    gpu, other = load_gpu("h200"), load_gpu("h200", ["hbm.standard=hbm2e"])
    assert other.hbm.standard == "HBM2e"
    assert other.hbm.bus_bits == gpu.hbm.bus_bits
    assert other.hbm.bandwidth_bytes_per_s == gpu.hbm.bandwidth_bytes_per_s
    assert other.hbm.pseudo_channel_bits == 64


def test_do_more_channels_bring_bandwidth() -> None:
    assert load_gpu("h200", ["hbm.channels=188"]).hbm.bandwidth_bytes_per_s == pytest.approx(2 * 4.814e12)


def test_do_more_partitions_keep_the_bandwidth_of_the_l2() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["l2.partitions=4"])
    assert more.l2.slices % 4 == 0
    assert more.l2_bytes_per_s == pytest.approx(gpu.l2_bytes_per_s)
    assert set(more.sm.partition_of_sm) == {0, 1, 2, 3}


def test_do_more_slices_bring_bandwidth_and_no_capacity() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["l2.slices=188"])
    assert more.l2_bytes_per_s == pytest.approx(2 * gpu.l2_bytes_per_s)
    assert more.l2.size_bytes == gpu.l2.size_bytes


@pytest.mark.parametrize(("size", "cap"), [("120MiB", 56 * 2**20), ("0", 0), ("inf", math.inf)])
def test_does_the_cap_on_dirty_data_follow_the_size_of_the_l2(size: str, cap: float) -> None:
    assert load_gpu("h200", [f"l2.size={size}"]).l2.dirty_cap_bytes == cap


def test_do_the_other_clocks_follow_the_clock() -> None:
    gpu = load_gpu("h200", ["sm.clock=990MHz"])
    assert gpu.sm.rated_clock_hz == pytest.approx(915e6)
    assert gpu.sm.sustained_clock_hz == pytest.approx(865e6)


def test_does_more_shared_memory_reach_the_cta_and_the_l1() -> None:
    gpu, more = load_gpu("h200"), load_gpu("h200", ["sm.shared_memory=292KiB"])
    grown = more.sm.shared_memory_bytes - gpu.sm.shared_memory_bytes
    assert grown == 64 * 1024
    assert more.sm.shared_memory_per_cta_bytes == gpu.sm.shared_memory_per_cta_bytes + grown
    assert more.l1.size_bytes == gpu.l1.size_bytes + grown


def test_is_a_change_the_same_in_one_step_and_in_two() -> None:
    at_once = load_gpu("h200", ["sm.count=144", "l2.size=120MiB"])
    assert load_gpu("h200", ["sm.count=144"]).with_overrides(["l2.size=120MiB"]) == at_once


def test_does_an_override_tell_its_source_and_what_followed() -> None:
    sources = load_gpu("h200", ["hbm.stacks=8"]).sources
    assert sources["hbm.stacks"] == "set by --set"
    assert sources["hbm.bandwidth"].startswith("follows hbm.stacks")
    assert sources["l2.size"].startswith("measured")
