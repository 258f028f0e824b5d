"""Does the folder measured on an H200 give what was found by hand, and the GPU file that is committed beside it?"""

from __future__ import annotations

import pytest

from experiments.calibration.folder import open_folder
from experiments.calibration.preset import derive_preset
from experiments.measurements import folder_of
from gpusim.spec import load_gpu
from gpusim.spec.document import read_toml
from gpusim.spec.sources import kind_of

FOLDER = folder_of("h200_calibration")
FILE = FOLDER / "h200-calibrated.toml"

EQUAL = (
    "sm.cta_order",
    "sm.filled_first",
    "sm.gpcs",
    "sm.gpc_of_sm",
    "l2.slices",
    "l2.partitions",
    "l2.home_bits",
    "noc.merge_width",
)
"""Found by other means than by hand, and the same."""
CLOSE = {
    "read_port_bytes_per_clk": 0.1,
    "cta_turnover_cycles": 0.05,
    "warp_launch_cycles": 0.05,
    "kernel_overhead_cycles": 0.1,
    "max_inflight_bytes": 0.2,
    "fp32_lanes": 0,
    "exp_per_clk": 0,
    "shared_bytes_per_clk": 0,
    "clock_hz": 0,
}
"""Figures of an SM → share that they may differ by from those found by hand, on another card."""


def test_are_structures_those_found_by_hand() -> None:
    by_hand, calibrated = load_gpu("h200"), load_gpu(FILE)
    for key in EQUAL:
        section, name = key.split(".")
        assert getattr(getattr(calibrated, section), name) == getattr(getattr(by_hand, section), name), key
    assert sum(calibrated.sm.partition_of_sm) == sum(by_hand.sm.partition_of_sm) == 66
    assert calibrated.sm.tensor_flops == by_hand.sm.tensor_flops


@pytest.mark.parametrize("name", CLOSE)
def test_are_figures_close_to_those_found_by_hand(name: str) -> None:
    by_hand, calibrated = getattr(load_gpu("h200").sm, name), getattr(load_gpu(FILE).sm, name)
    assert calibrated == pytest.approx(by_hand, rel=CLOSE[name])


def test_is_the_committed_file_what_the_rules_make_of_the_folder() -> None:
    document, preset = read_toml(FILE), derive_preset(open_folder(FOLDER), "h200-calibrated")
    assert not open_folder(FOLDER).missing
    fitted = {key for key, source in document.sources.items() if kind_of(source) == "fitted"}
    assert fitted == {"sm.max_inflight", "l2.data_share", "l2.home_allocation"}
    # Sources of what is taken from the preset change when the preset does.
    of_this_card = {
        key for key, figure in preset.figures.items() if kind_of(figure.source) != "as another GPU"
    } - fitted
    assert {key: document.values[key] for key in of_this_card} == {
        key: list(value) if isinstance(value := preset.figures[key].value, tuple) else value for key in of_this_card
    }
    assert all(document.sources[key] == preset.figures[key].source for key in of_this_card)
