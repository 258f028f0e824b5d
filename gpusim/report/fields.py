"""What a result dictionary holds: field names, labels, order of tensors, and a check with one-sentence complaints.

Bytes are bytes, MB is 1e6 bytes; `time_us` and every `*_us` is in microseconds of the SM clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpusim.errors import UserError

__all__ = [
    "BYTE_FIELDS",
    "LEVELS",
    "STATES",
    "Level",
    "Result",
    "byte_count",
    "check",
    "has_timeline",
    "hbm_bytes",
    "hbm_ratio",
    "intensity",
    "labels",
    "microseconds",
    "ratio",
    "tensors_of",
]

Result = Mapping[str, Any]
"""One simulated algorithm in the JSON contract."""

BYTE_FIELDS: tuple[tuple[str, str], ...] = (
    ("dram_read_bytes", "HBM read"),
    ("dram_write_bytes", "HBM write"),
    ("l2_read_bytes", "L2 read"),
    ("l2_write_bytes", "L2 write"),
    ("fabric_bytes", "Fabric"),
    ("sm_read_bytes", "SM read"),
    ("sm_write_bytes", "SM write"),
    ("shared_read_bytes", "Shared read"),
    ("shared_write_bytes", "Shared write"),
    ("dirty_bytes_left", "Dirty left"),
)
"""Byte counters of a kernel or tensor, in the order of a datum's walk, with their headings."""


class Level(NamedTuple):
    """One level of the timeline: its key, its heading, and the counter that its bins add up to."""

    key: str
    label: str
    field: str


LEVELS = (
    Level("dram_read", "HBM read", "dram_read_bytes"),
    Level("dram_write", "HBM write", "dram_write_bytes"),
    Level("fabric", "Fabric", "fabric_bytes"),
    Level("l2_read", "L2 read", "l2_read_bytes"),
    Level("l2_write", "L2 write", "l2_write_bytes"),
)

STATES = (
    ("tensor", "Tensor cores busy", "tensor_busy_cycles"),
    ("vector", "Vector units busy", "vector_busy_cycles"),
    ("wait", "Waiting for memory", "memory_wait_cycles"),
)
"""SM states of the timeline (SM-cycles per bin, summed over SMs); what is left of the bin is idle."""

_TENSOR_ORDER = ("Q", "K", "V", "S", "P", "O", "LSE", "dO", "D", "dQ", "dK", "dV", "dP", "dS")
_MACHINE = ("sm_count", "clock_hz", "peak_flops", "hbm_bytes_per_second", "l2_bytes_per_second", "l2_bytes")
_KERNEL = ("ctas", "cycles", "time_us", "flops", "l2_hit_rate", "tensor_utilisation", "dram_utilisation")


def check(result: object, where: str) -> Result:
    """`result` itself if it has the fields a report reads.

    Raises:
        UserError: the first thing that is missing, in one sentence that starts with `where`.
    """
    if not isinstance(result, Mapping):
        raise UserError(f"{where} is not a gpusim result (a JSON object), but {type(result).__name__}")
    for key in ("gpu", "algorithm", "problem", "schedule", "machine", "kernels", "total", "by_tensor", "analytic"):
        _require(result, key, where)
    for key in ("problem", "schedule", "machine", "total", "by_tensor", "analytic"):
        if not isinstance(result[key], Mapping):
            raise UserError(f"{where} is not a gpusim result: {key!r} is not an object")
    for key in _MACHINE:
        _number(result["machine"], key, f"{where}: machine")
        if not result["machine"][key] or result["machine"][key] < 0:
            raise UserError(f"{where}: machine has {key!r} = {result['machine'][key]}, which is not positive")
    for key in ("hbm_bytes", "arithmetic_intensity", "ridge_point"):
        _number(result["analytic"], key, f"{where}: analytic")
    if not isinstance(result["kernels"], list) or not result["kernels"]:
        raise UserError(f"{where} is not a gpusim result: 'kernels' is not a list of at least one kernel")
    for index, kernel in enumerate((*result["kernels"], result["total"])):
        name = f"kernel {index}" if index < len(result["kernels"]) else "total"
        if not isinstance(kernel, Mapping):
            raise UserError(f"{where} is not a gpusim result: {name} is not an object")
        if name != "total":
            _require(kernel, "name", f"{where}: {name}")
        for key in _KERNEL:
            _number(kernel, key, f"{where}: {name}")
        _counters(kernel, f"{where}: {name}")
    for tensor, counters in result["by_tensor"].items():
        if not isinstance(counters, Mapping):
            raise UserError(f"{where} is not a gpusim result: tensor {tensor} is not an object")
        _counters(counters, f"{where}: tensor {tensor}", required=False)
    if has_timeline(result):
        _check_timeline(result["timeline"], where)
    return result


def _require(holder: Mapping[str, Any], key: str, where: str) -> None:
    if key not in holder:
        raise UserError(f"{where} has no {key!r}, so it is not a complete gpusim result")


def _number(holder: Mapping[str, Any], key: str, where: str) -> None:
    _require(holder, key, where)
    value = holder[key]
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise UserError(f"{where} has {key!r} = {value!r}, which is not a number")


def _counters(holder: Mapping[str, Any], where: str, required: bool = True) -> None:
    for key, _ in BYTE_FIELDS:
        if required or key in holder:
            _number(holder, key, where)


def _check_timeline(timeline: Mapping[str, Any], where: str) -> None:
    if not isinstance(timeline, Mapping) or not isinstance(timeline.get("bytes"), Mapping):
        raise UserError(f"{where} has a timeline without 'bytes' per level and tensor")
    _number(timeline, "bin_cycles", f"{where}: timeline")
    rows = {f"bytes.{lvl}.{t}": row for lvl, by in timeline["bytes"].items() for t, row in dict(by).items()}
    for key in ("l2_hit_sectors", "l2_lookup_sectors", *(key for _, _, key in STATES)):
        _require(timeline, key, f"{where}: timeline")
        rows[key] = timeline[key]
    lengths = {len(row) if isinstance(row, list) else -1 for row in rows.values()}
    if len(lengths) > 1 or -1 in lengths:
        raise UserError(f"{where} has a timeline whose rows are not lists of one length")


def has_timeline(result: Result) -> bool:
    """Whether the result carries a timeline with at least one bin."""
    timeline = result.get("timeline")
    return timeline not in (None, {}) and (not isinstance(timeline, Mapping) or timeline.get("l2_lookup_sectors") != [])


def tensors_of(results: Sequence[Result]) -> list[str]:
    """Every tensor of `results` once: the familiar ones in attention's order, then the others as they come."""
    seen = {tensor: None for result in results for tensor in result["by_tensor"]}
    for result in results:
        for by_tensor in (result.get("timeline") or {}).get("bytes", {}).values():
            seen.update(dict.fromkeys(by_tensor))
    known = [tensor for tensor in _TENSOR_ORDER if tensor in seen]
    return known + [tensor for tensor in seen if tensor not in _TENSOR_ORDER]


def labels(results: Sequence[Result]) -> list[str]:
    """A distinct short name per result: algorithm, with the GPU or a number where that is not enough."""
    names = [str(result["algorithm"]) for result in results]
    if len(set(names)) < len(names):
        names = [f"{name} on {result['gpu']}" for name, result in zip(names, results, strict=True)]
    count, used = Counter(names), Counter[str]()
    distinct = []
    for name in names:
        used[name] += 1
        distinct.append(f"{name} #{used[name]}" if count[name] > 1 else name)
    return distinct


def byte_count(counters: Mapping[str, Any], field: str) -> float:
    """Bytes of one counter; a missing counter is 0."""
    return float(counters.get(field) or 0)


def hbm_bytes(counters: Mapping[str, Any]) -> float:
    """HBM bytes read plus written."""
    return byte_count(counters, "dram_read_bytes") + byte_count(counters, "dram_write_bytes")


def ratio(value: float, base: float) -> float | None:
    """`value / base`, or None where that says nothing."""
    return value / base if base else None


def intensity(counters: Mapping[str, Any], level: str = "hbm") -> float | None:
    """FLOP per byte moved at `level` (`hbm` or `l2`); None without bytes."""
    moved = hbm_bytes(counters)
    if level == "l2":
        moved = byte_count(counters, "l2_read_bytes") + byte_count(counters, "l2_write_bytes")
    return ratio(float(counters.get("flops") or 0), moved)


def hbm_ratio(result: Result) -> float | None:
    """Simulated HBM bytes over those of the closed form."""
    return ratio(hbm_bytes(result["total"]), float(result["analytic"]["hbm_bytes"] or 0))


def microseconds(result: Result, cycles: float) -> float:
    """SM cycles as microseconds."""
    return cycles / float(result["machine"]["clock_hz"]) * 1e6
