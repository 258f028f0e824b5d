"""Are the presets complete, sourced, and true to the published headline figures?"""

from __future__ import annotations

import pytest

from gpusim.spec import load_gpu, preset_names
from gpusim.spec.document import preset_path, read_toml
from gpusim.spec.standards import load_standard, standard_names


@pytest.mark.parametrize("name", preset_names())
def test_has_every_figure_of_a_preset_a_source(name: str) -> None:
    path = preset_path(name)
    assert path is not None
    document = read_toml(path)
    figures = set(document.values) - {"name"}
    assert figures == set(document.sources)
    assert all(text.strip() for text in document.sources.values())


@pytest.mark.parametrize("name", standard_names())
def test_has_every_figure_of_a_memory_standard_a_source(name: str) -> None:
    standard = load_standard(name)
    assert set(standard.values) == set(standard.sources)
    assert set(standard.follows_data_rate) <= set(standard.values)


@pytest.mark.parametrize("name", preset_names())
def test_is_the_preset_named_like_its_file(name: str) -> None:
    assert load_gpu(name.upper()).name == name


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
