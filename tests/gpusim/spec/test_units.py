"""Do quantities with units mean what they say, and do bad ones explain themselves?"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.spec import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120MiB", 120 * 2**20),
        ("228 KiB", 228 * 1024),
        ("50MB", 50_000_000),
        ("1.5GiB", 3 * 2**29),
        ("4096", 4096),
        (233472, 233472),
        ("1e3", 1000),
        ("inf", math.inf),
        ("0", 0),
    ],
)
def test_what_does_a_size_mean(text: object, expected: float) -> None:
    assert units.parse_size(text) == expected


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_bandwidth, "4.8TB/s", 4.8e12),
        (units.parse_bandwidth, "900 GB / s", 900e9),
        (units.parse_bandwidth, 2e12, 2e12),
        (units.parse_bandwidth, "inf", math.inf),
        (units.parse_bytes_per_clock, "64B/clk", 64),
        (units.parse_bytes_per_clock, "87", 87),
        (units.parse_frequency, "1.98GHz", 1.98e9),
        (units.parse_frequency, "1410 MHz", 1.41e9),
        (units.parse_time_ns, "665ns", 665),
        (units.parse_time_ns, "3us", 3000),
        (units.parse_cycles, "284 cycles", 284),
        (units.parse_whole, "132", 132),
        (units.parse_fraction, "0.62", 0.62),
    ],
)
def test_what_does_a_rate_clock_or_time_mean(parse: Callable[[object], float], text: object, expected: float) -> None:
    assert parse(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("parse", "text", "allowed"),
    [
        (units.parse_size, "60 MiBs", "60MiB"),
        (units.parse_size, "-1", "a size"),
        (units.parse_size, "", "a size"),
        (units.parse_size, "nan", "a size"),
        (units.parse_size, True, "a size"),
        (units.parse_bandwidth, "4.8TB", "4.8TB/s"),
        (units.parse_bandwidth, "fast", "4.8TB/s"),
        (units.parse_bytes_per_clock, "64B/s", "64B/clk"),
        (units.parse_frequency, "2 THz", "1.98GHz"),
        (units.parse_time_ns, "3 min", "15ns"),
        (units.parse_whole, "1.5", "whole number"),
        (units.parse_fraction, "1.2", "between 0 and 1"),
        (units.parse_flag, "yes", "true or false"),
        (units.parse_int_list, "1,x", "whole number"),
    ],
)
def test_does_a_bad_quantity_name_itself_and_what_is_allowed(
    parse: Callable[[object], float], text: object, allowed: str
) -> None:
    with pytest.raises(ValueError, match=allowed) as caught:
        parse(text)
    assert str(text).split(",")[-1] in str(caught.value)


@given(st.integers(0, 2**50))
def test_does_a_size_survive_being_written_as_bytes(size: int) -> None:
    assert units.parse_size(f"{size}B") == size


@given(st.integers(1, 999), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_is_a_formatted_size_the_size_that_was_parsed(count: int, unit: str) -> None:
    text = f"{count} {unit}"
    assert units.parse_size(units.format_size(units.parse_size(text))) == units.parse_size(text)


def test_how_are_quantities_shown() -> None:
    assert units.format_size(228 * 1024) == "228 KiB"
    assert units.format_size(141e9) == "141 GB"
    assert units.format_size(math.inf) == "inf"
    assert units.format_bandwidth(4.814e12) == "4.814 TB/s"
    assert units.format_frequency(1.41e9) == "1.41 GHz"
    assert units.format_time_ns(3900) == "3.9 us"
