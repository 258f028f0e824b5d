"""Do the rules find the figures of a known machine, and say where each number is from?"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.calibration.device_figures import memory_standard
from experiments.calibration.folder import open_folder
from experiments.calibration.noc_figures import mean_window
from experiments.calibration.preset import Preset, base_of, derive_preset
from experiments.calibration.rate_figures import nominal
from experiments.calibration.report import report_text
from gpusim.spec import GpuSpec, load_gpu
from gpusim.spec.document import KEYS
from gpusim.spec.sources import KINDS, kind_of
from tests.experiments.calibration import synthetic


def derived(folder: Path, **options: str) -> tuple[Preset, GpuSpec]:
    """The preset, and the GPU that its file describes."""
    preset = derive_preset(open_folder(folder), "mine", **options)
    path = folder / "mine.toml"
    path.write_text(preset.to_toml())
    return preset, load_gpu(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic.write_folder(tmp_path / "folder")


def test_are_the_sms_of_a_known_machine_recovered(folder: Path) -> None:
    sm = derived(folder)[1].sm
    assert (sm.count, sm.clock_hz, sm.sustained_clock_hz) == (32, 1.5e9, 1.2e9)
    assert (sm.shared_memory_bytes, sm.shared_memory_per_cta_bytes, sm.max_ctas) == (200 << 10, 199 << 10, 24)
    assert (sm.read_port_bytes_per_clk, sm.write_port_bytes_per_clk) == (64, 48)
    assert (sm.reduce_port_bytes_per_clk, sm.fragment_port_bytes_per_clk) == (36, 20)
    # 0.0768 TB/s at 1.5 GHz and 600 cycles are 30 KiB; a fifth more, in steps of 8 KiB.
    assert sm.max_inflight_bytes == 32 << 10
    assert (sm.shared_latency_cycles, sm.shared_bytes_per_clk) == (25, 128)
    assert sm.cta_order == tuple(synthetic.ORDER) and sm.gpc_of_sm == tuple(synthetic.GPC_OF_SM) and sm.gpcs == 2
    assert sm.partition_of_sm == tuple(synthetic.PARTITION_OF_SM) and sm.filled_first == 4
    # 200 ns and 5 ns per warp; 40 ns of stagger; 1000 more CTAs take 2500 cycles.
    assert (sm.cta_turnover_cycles, sm.warp_launch_cycles) == (300, 7.5)
    assert (sm.tpc_stagger_cycles, sm.cta_launch_interval_cycles) == (60, 2.5)
    assert sm.kernel_overhead_cycles == 3000


def test_are_the_rates_of_a_known_machine_recovered(folder: Path) -> None:
    sm = derived(folder)[1].sm
    assert (sm.tensor_flops["fp16"], sm.tensor_flops["fp8"], sm.fp32_lanes, sm.exp_per_clk) == (2048, 4096, 128, 16)
    assert (sm.mma_sync_efficiency, sm.wgmma_efficiency) == (0.6, 0.996)
    assert [nominal(rate) for rate in (1364, 2047.6, 8190.4, 117, 0)] == [1024, 2048, 8192, 128, 0]


def test_are_caches_and_memory_of_a_known_machine_recovered(folder: Path) -> None:
    gpu = derived(folder)[1]
    l2, noc, hbm = gpu.l2, gpu.noc, gpu.hbm
    assert (l2.size_bytes, l2.slices, l2.partitions, l2.clock_hz) == (24 << 20, 30, 2, 1.2e9)
    assert (l2.latency_cycles, l2.reduce_bytes_per_clk, l2.home_bits) == (240, 20, (12, 14))
    assert l2.dirty_cap_bytes == 10 << 20
    assert (noc.coalescer, noc.merge_width, noc.merge_window_cycles) == ("merge", 4, 60)
    assert (noc.gpc_port_bytes_per_clk, noc.fabric_bytes_per_s, noc.fabric_latency_cycles) == (502, 9e11, 150)
    # 5 of 6; 40 / 48 of the SMs of 3 CPCs of 4, of 16; 32 / 48 of those of 6, of 32.
    assert (noc.cpc_uplink, noc.gpc_uplink, noc.uplink) == (0.83, 0.62, 0.5)
    assert (hbm.standard, hbm.channels, hbm.stacks, hbm.bandwidth_bytes_per_s) == ("HBM3", 32, 2, 1.28e12)
    assert (hbm.latency_cycles, hbm.refresh, hbm.write_efficiency) == (600, "per_bank", 0.8)
    assert hbm.read_efficiency == 0.95


def test_has_every_figure_a_source_of_a_known_kind(folder: Path) -> None:
    preset, gpu = derived(folder)
    assert {kind_of(figure.source) for figure in preset.figures.values()} <= set(KINDS)
    assert gpu.sources["l2.slices"] == "measured: L2 slices counted by Nsight Compute (units.csv)"
    assert gpu.sources["l2.ways"].startswith("as h200: fitted: ")
    assert set(gpu.sources) >= set(KEYS) - {"name"}
    assert not preset.of_kind("given")


def test_are_figures_that_follow_from_measured_ones_not_those_of_the_base(folder: Path) -> None:
    (folder / "l2_writeback_and_merging.csv").unlink()
    preset, gpu = derived(folder)
    assert gpu.l2.dirty_cap_bytes == pytest.approx((28 << 20) * 24 / 60, rel=1e-6)
    assert preset.figures["l2.dirty_cap"].source.startswith("follows l2.size; before: as h200: measured")


def test_are_numbers_estimates_where_no_counters_are_permitted(folder: Path) -> None:
    for name in synthetic.COUNTER_FILES:
        (folder / name).unlink()
    m = open_folder(folder)
    preset = derive_preset(m, "mine")
    estimated = {figure.key for figure in preset.of_kind("estimate")}
    assert {"l2.slices", "sm.kernel_overhead", "l2.reduce_bandwidth"} <= estimated
    assert preset.figures["l2.slices"].value == 32, "one per 64 bits of the bus"
    assert preset.figures["sm.kernel_overhead"].value == 3000
    assert preset.figures["noc.merge_width"].source.startswith("as h200: ")
    text = report_text(preset, m, ())
    assert "no hardware counters: event times only" in text
    assert "units.csv is not there (slices, GPCs, channels, L2 clock, from counters)" in text
    listed = next(line for line in text.splitlines() if line.startswith("  estimates: "))
    assert all(key in listed for key in estimated)


def test_does_a_folder_of_the_device_alone_give_a_gpu(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "device.json":
            path.unlink()
    preset, gpu = derived(folder)
    assert (gpu.sm.count, gpu.l2.size_bytes, gpu.l2.slices) == (32, 24 << 20, 32)
    assert len(gpu.sm.cta_order) == 32 and preset.figures["sm.cta_order"].source.startswith("follows sm.count")


def test_is_an_l2_of_one_partition_seen(tmp_path: Path) -> None:
    gpu = derived(synthetic.write_folder(tmp_path / "one", partitions=1))[1]
    assert gpu.l2.partitions == 1 and set(gpu.sm.partition_of_sm) == {0}


def test_are_tensor_cores_left_alone_that_were_not_timed(tmp_path: Path) -> None:
    preset, gpu = derived(synthetic.write_folder(tmp_path / "newer", capability="10.0"))
    assert gpu.sm.tensor_flops == load_gpu("b200").sm.tensor_flops
    assert preset.figures["sm.tensor_flops.fp16"].source.startswith("as b200: ")


def test_is_the_base_the_nearest_older_kin() -> None:
    assert [base_of(c) for c in ((5, 0), (7, 5), (8, 6), (9, 0), (12, 0))] == [
        "v100-sxm2", "v100-sxm2", "a100-80gb-sxm", "h200", "b200"
    ]  # fmt: skip


def test_is_another_base_taken_when_asked(folder: Path) -> None:
    preset, _ = derived(folder, base_name="h100-pcie")
    assert preset.base == "h100-pcie" and "h100-pcie" in preset.to_toml()


@pytest.mark.parametrize(
    ("bits", "clock_hz", "name"),
    [
        (4096, 0.877e9, "HBM2"),
        (5120, 1.593e9, "HBM2e"),
        (5120, 2.619e9, "HBM3"),
        (6016, 3.201e9, "HBM3e"),
        (384, 10.5e9, "GDDR6X"),
    ],
)
def test_is_the_generation_of_memory_that_of_known_cards(bits: int, clock_hz: float, name: str) -> None:
    assert memory_standard(bits, clock_hz) == name


def test_is_the_window_the_mean_over_requests() -> None:
    assert mean_window({0: 1.0, 40: 1.0, 80: 0.0, 300: 0.0}) == 60
