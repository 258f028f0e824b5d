"""Are the presets complete, sourced, and true to the published headline figures?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from gpusim.counters import C
from gpusim.machine import simulate
from gpusim.spec import load_gpu, preset_names
from gpusim.spec.document import KEYS, preset_path, read_toml
from gpusim.spec.sources import KINDS, kind_of
from gpusim.spec.standards import load_standard, standard_names
from tests.gpusim.simulations import counts, plan_of


@pytest.mark.parametrize("name", preset_names())
def test_has_every_figure_of_a_preset_a_source(name: str) -> None:
    path = preset_path(name)
    assert path is not None
    document = read_toml(path)
    figures = set(document.values) - {"name"}
    assert figures == set(document.sources)
    assert all(re.search("[A-Za-z]{2}", text) for text in document.sources.values())


@pytest.mark.parametrize("name", preset_names())
def test_can_the_source_of_every_figure_be_told(name: str) -> None:
    gpu = load_gpu(name)
    texts = {key: text for key, text in gpu.sources.items() if key != "name"}
    assert set(texts) == set(KEYS) - {"name"}
    assert {kind_of(text) for text in texts.values()} <= set(KINDS) - {"given"}


@pytest.mark.parametrize("name", sorted(set(preset_names()) - {"h200"}))
def test_does_no_other_card_claim_what_was_measured_on_the_h200(name: str) -> None:
    kinds = {key: kind_of(text) for key, text in load_gpu(name).sources.items()}
    assert not [key for key, kind in kinds.items() if kind in ("measured", "fitted")]


@pytest.mark.parametrize("name", standard_names())
def test_has_every_figure_of_a_memory_standard_a_source(name: str) -> None:
    standard = load_standard(name)
    assert set(standard.values) == set(standard.sources)
    assert set(standard.follows_data_rate) <= set(standard.values)


@pytest.mark.parametrize("name", preset_names())
def test_is_the_preset_named_like_its_file(name: str) -> None:
    assert load_gpu(name.upper()).name == name


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the makers' data sheets and white papers say: dense TFLOPS, GB/s, MiB of L2, SMs, bits of the memory bus."""

    fp16: float
    fp8: float
    hbm: float
    l2: float
    sms: int
    bus: int


SHEETS = {
    "v100-sxm2": Sheet(125, 15.7, 900, 6, 80, 4096),
    "a100-40gb-sxm": Sheet(312, 19.5, 1555, 40, 108, 5120),
    "a100-80gb-sxm": Sheet(312, 19.5, 2039, 40, 108, 5120),
    "h100-sxm": Sheet(989.4, 1979, 3350, 50, 132, 5120),
    "h100-pcie": Sheet(756, 1513, 2039, 50, 114, 5120),
    "h200": Sheet(989.4, 1979, 4800, 60, 132, 6016),
    "b200": Sheet(2250, 4500, 8000, 126, 148, 8192),
    "rtx4090": Sheet(165.2, 330.3, 1008, 72, 128, 384),
    "mi300x": Sheet(1307.4, 2614.9, 5300, 32, 304, 8192),
}


@pytest.mark.parametrize("name", preset_names())
def test_are_the_peaks_those_of_the_data_sheet(name: str) -> None:
    """FP8 of cards without FP8 tensor cores is the FP32 rate of their lanes."""
    gpu, sheet = load_gpu(name), SHEETS[name]
    assert gpu.peak_flops("fp16", "rated") == pytest.approx(sheet.fp16 * 1e12, rel=0.01)
    assert gpu.peak_flops("fp8_e4m3", "rated") == pytest.approx(sheet.fp8 * 1e12, rel=0.01)
    assert gpu.hbm.bandwidth_bytes_per_s == pytest.approx(sheet.hbm * 1e9, rel=0.01)
    assert gpu.l2.size_bytes == pytest.approx(sheet.l2 * 2**20, rel=0.01)
    assert (gpu.sm.count, gpu.hbm.bus_bits) == (sheet.sms, sheet.bus)


@pytest.mark.parametrize(("name", "measured"), [("a100-80gb-sxm", 5.4e12), ("h100-pcie", 6.9e12), ("h200", 8.7e12)])
def test_is_the_peak_of_the_l2_above_what_was_read_from_it(name: str, measured: float) -> None:
    assert 0.7 < measured / load_gpu(name).l2_bytes_per_s < 0.95


@pytest.mark.parametrize("name", preset_names())
def test_can_every_preset_simulate(name: str) -> None:
    plan = plan_of("flash2", {"tile_kv": 32}, heads=2, seq=256, dim=64)
    result = simulate(plan, load_gpu(name), check=True)
    assert counts(result, C.DRAM_READ)["K"] >= 2 * 256 * 64 * 2


def test_do_neighbouring_ctas_go_to_different_dies_of_the_mi300x() -> None:
    sm = load_gpu("mi300x").sm
    assert [sm.partition_of_sm[i] for i in sm.cta_order] == list(range(8)) * 38


def test_is_the_ridge_point_of_a100_fp16_153() -> None:
    assert load_gpu("a100-80gb-sxm").ridge_point("fp16") == pytest.approx(153, abs=0.1)


def test_is_the_rated_peak_that_of_the_data_sheet() -> None:
    assert load_gpu("h200").peak_flops("fp16", "rated") == pytest.approx(989.4e12, rel=1e-3)
    assert load_gpu("h200").peak_flops("fp8_e4m3", "rated") == pytest.approx(1979e12, rel=1e-3)
    assert load_gpu("a100-80gb-sxm").peak_flops("fp16", "rated") == pytest.approx(312e12, rel=1e-3)
    assert load_gpu("a100-80gb-sxm").peak_flops("fp32", "rated") == pytest.approx(19.5e12, rel=1e-2)


def test_is_the_memory_bus_as_wide_as_the_device_reports() -> None:
    assert load_gpu("h200").hbm.bus_bits == 6016
    assert load_gpu("h200").hbm.pseudo_channels_total == 188
    assert load_gpu("a100-80gb-sxm").hbm.bus_bits == 5120


@pytest.mark.parametrize("name", preset_names())
def test_does_a_burst_take_as_long_as_two_column_commands_must_be_apart(name: str) -> None:
    hbm = load_gpu(name).hbm
    assert hbm.timing.ccd_s_ns == pytest.approx(hbm.burst_ns)


def test_does_h200_launch_its_first_cta_where_it_was_measured() -> None:
    order = load_gpu("h200").sm.cta_order
    assert order[:10] == (124, 125, 126, 127, 128, 129, 130, 131, 0, 1)


def test_is_an_unknown_precision_refused() -> None:
    with pytest.raises(ValueError, match="fp4"):
        load_gpu("h200").peak_flops("fp4")


def test_do_only_cycles_change_with_the_clock() -> None:
    gpu = load_gpu("h200")
    slow = gpu.at_clock(gpu.sm.clock_hz / 2)
    assert slow.l2_bytes_per_s == gpu.l2_bytes_per_s
    assert slow.l2_bytes_per_clk == pytest.approx(2 * gpu.l2_bytes_per_clk)
    assert slow.hbm_bytes_per_clk == pytest.approx(2 * gpu.hbm_bytes_per_clk)
    assert slow.cycles(100) == pytest.approx(gpu.cycles(100) / 2)
    assert slow.ridge_point("fp16") == gpu.ridge_point("fp16")
