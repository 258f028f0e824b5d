"""Quantities with units: text or plain numbers in, base units out (bytes, bytes/s, Hz, ns, cycles), and back to text.

Every parser takes what a TOML file or a `--set` option can hold, and raises `ValueError` with a phrase that names the
text and what is allowed.

    >>> parse_size("1.5 KiB"), parse_bandwidth("4.8TB/s"), parse_frequency("1410MHz"), parse_time_ns("3us")
    (1536, 4800000000000.0, 1410000000.0, 3000.0)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

__all__ = [
    "format_bandwidth",
    "format_frequency",
    "format_number",
    "format_size",
    "format_time_ns",
    "parse_bandwidth",
    "parse_bytes_per_clock",
    "parse_cycles",
    "parse_flag",
    "parse_fraction",
    "parse_frequency",
    "parse_int_list",
    "parse_size",
    "parse_time_ns",
    "parse_whole",
]

_BYTES: Mapping[str, float] = {
    "": 1,
    "B": 1,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_HERTZ: Mapping[str, float] = {"": 1, "HZ": 1, "KHZ": 1e3, "MHZ": 1e6, "GHZ": 1e9}
_NANOSECONDS: Mapping[str, float] = {"": 1, "PS": 1e-3, "NS": 1, "US": 1e3, "µS": 1e3, "MS": 1e6, "S": 1e9}
_CYCLES: Mapping[str, float] = {"": 1, "CLK": 1, "CYCLE": 1, "CYCLES": 1}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL)


def _quantity(value: object, units: Mapping[str, float], allowed: str, infinite: bool = False) -> float:
    """`value` in base units; not negative, infinite only where `infinite` says so."""
    problem = ValueError(f"{_shown(value)} is not {allowed}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise problem
    if isinstance(value, str):
        if value.strip().lower() in ("inf", "infinite"):
            number, scale = math.inf, 1.0
        else:
            match = _NUMBER.fullmatch(value)
            if match is None or match[2].upper() not in units:
                raise problem
            number, scale = float(match[1]), units[match[2].upper()]
    else:
        number, scale = float(value), 1.0
    if math.isnan(number) or number < 0 or (math.isinf(number) and not infinite):
        raise problem
    return number * scale


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def parse_size(value: object) -> int | float:
    """Bytes, a whole number (`int`) or `math.inf`. MB and GB are decimal, MiB and GiB are powers of 1024."""
    allowed = "a size such as 60MiB, '228 KiB', 50MB, a number of bytes, or inf"
    size = _quantity(value, _BYTES, allowed, infinite=True)
    return size if math.isinf(size) else round(size)


def parse_bandwidth(value: object) -> float:
    """Bytes per second (`inf` is allowed)."""
    allowed = "a bandwidth such as 4.8TB/s, 900GB/s, a number of bytes per second, or inf"
    if isinstance(value, str) and not re.search(r"/\s*s\s*$|^[^a-zA-Z]*$|^\s*inf", value):
        raise ValueError(f"{value!r} is not {allowed}")
    stripped = re.sub(r"/\s*s\s*$", "", value) if isinstance(value, str) else value
    try:
        return _quantity(stripped, _BYTES, allowed, infinite=True)
    except ValueError:
        raise ValueError(f"{_shown(value)} is not {allowed}") from None


def parse_bytes_per_clock(value: object) -> float:
    """Bytes per clock cycle."""
    allowed = "a rate such as 64B/clk or a number of bytes per clock"
    stripped = re.sub(r"/\s*(clk|cycle)\s*$", "", value) if isinstance(value, str) else value
    try:
        return _quantity(stripped, _BYTES, allowed)
    except ValueError:
        raise ValueError(f"{_shown(value)} is not {allowed}") from None


def parse_frequency(value: object) -> float:
    """Hertz."""
    return _quantity(value, _HERTZ, "a clock such as 1.98GHz, 1410MHz or a number of hertz")


def parse_time_ns(value: object) -> float:
    """Nanoseconds."""
    return _quantity(value, _NANOSECONDS, "a time such as 15ns, 3.9us or a number of nanoseconds")


def parse_cycles(value: object) -> float:
    """Clock cycles."""
    return _quantity(value, _CYCLES, "a number of cycles such as 284 or '284 cycles'")


def parse_whole(value: object) -> int:
    """A whole number, at least 0."""
    number = _quantity(value, {"": 1}, "a whole number")
    if number != int(number):
        raise ValueError(f"{_shown(value)} is not a whole number")
    return int(number)


def parse_fraction(value: object) -> float:
    """A plain number between 0 and 1."""
    number = _quantity(value, {"": 1}, "a number between 0 and 1")
    if number > 1:
        raise ValueError(f"{_shown(value)} is not a number between 0 and 1")
    return number


def parse_flag(value: object) -> bool:
    """true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(f"{_shown(value)} is not true or false")


def parse_int_list(value: object) -> tuple[int, ...]:
    """Whole numbers: a TOML array, or `0,1,2` on the command line (empty text is an empty list)."""
    items: object = (
        [part for part in value.strip("[] ").split(",") if part.strip()] if isinstance(value, str) else value
    )
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"{_shown(value)} is not a list of whole numbers such as 0,1,2")
    return tuple(parse_whole(item) for item in items)


def format_number(value: float) -> str:
    """At most four significant digits, whole numbers in full: `87`, `0.62`, `65536`."""
    if math.isinf(value):
        return "inf"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def format_size(size: float) -> str:
    """Bytes as text, in powers of 1024 unless it is a whole number of GB: `228 KiB`, `60 MiB`, `141 GB`, `inf`."""
    if math.isinf(size):
        return "inf"
    if size and size % 1e9 == 0:
        return f"{format_number(size / 1e9)} GB"
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= scale:
            return f"{format_number(size / scale)} {unit}"
    return f"{format_number(size)} B"


def format_bandwidth(rate: float) -> str:
    """Bytes per second as text: `4.814 TB/s`."""
    return f"{_decimal(rate, 'B')}/s"


def format_frequency(hertz: float) -> str:
    """Hertz as text: `1.98 GHz`."""
    return _decimal(hertz, "Hz")


def format_time_ns(nanoseconds: float) -> str:
    """Nanoseconds as text: `15 ns`, `3.9 us`."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= scale:
            return f"{format_number(nanoseconds / scale)} {unit}"
    return f"{format_number(nanoseconds)} ns"


def _decimal(value: float, unit: str) -> str:
    if math.isinf(value):
        return f"inf {unit}"
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{format_number(value / scale)} {prefix}{unit}"
    return f"{format_number(value)} {unit}"
