"""What else changes when one figure of a GPU is changed, so that a hypothetical GPU stays a GPU.

Each rule looks at what was *given* (by `--set`, or by a file that extends another) and differs from before, and adjusts
what was not given:

* `sm.count` keeps per-SM figures and the size of a GPC; the CTA order and the partition of each SM are extended or cut;
  GPCs and merge groups are formed anew. So are GPCs when `sm.gpcs` changes.
* `sm.clock` scales the rated and the sustained clock.
* `sm.shared_memory` keeps the reserve between an SM's total and the most one CTA can have, and moves `l1.size` along.
* `l2.size` scales `l2.dirty_cap`.
* `l2.partitions` rounds `l2.slices` to a multiple and keeps the L2's bandwidth.
* `hbm.stacks` scales the memory size, the channels and the bandwidth; `hbm.standard` the channels (same bus width).
* `hbm.channels` scales the bandwidth.
* `hbm.bandwidth` keeps the channels, so each becomes faster (and `ccd_s`, `ccd_l` shorter; see `complete`).

Latencies in cycles stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gpusim.spec.document import KEYS
from gpusim.spec.standards import load_standard

__all__ = ["complete", "derive"]

Values = Mapping[str, Any]

_CONTROLLER: Mapping[str, tuple[Any, str]] = {
    "hbm.mapping": ("permuted", "default: lines alternate between pseudo-channels, rows between bank groups"),
    "hbm.refresh": ("all_bank", "default: what every HBM controller can do"),
    "hbm.write_queue": (32, "default: as in Ramulator 2.1"),
    "hbm.read_efficiency": (1.0, "default: nothing is lost but to timing rules and refresh"),
    "hbm.write_efficiency": (1.0, "default: nothing is lost but to timing rules and refresh"),
}
"""Figures of the memory controller that vendors do not publish: key → (value, source)."""
DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "sm.reduce_port": ("25.3B/clk", "estimate: as measured on the H200"),
    "sm.fragment_port": ("15.8B/clk", "estimate: as measured on the H200"),
    "l1.ways": (16, "estimate: nobody publishes it"),
    "l2.home_bits": ((12, 13, 15, 17, 19), "estimate: as measured on the H200"),
    "l2.reduce_bandwidth": ("23.7B/clk", "estimate: as measured on the H200"),
    "l2.fragment_bandwidth": ("14B/clk", "estimate: as measured on the H200"),
    "l2.idle_dirty_share": (0.93, "estimate: as measured on the H200"),
    "l2.clean_share": (0.0, "estimate: as fitted on the H200"),
    "l2.persisting": (0, "default: no set-aside, as on a device after a reset"),
    "l2.flush_residue": (0, "default: a flush leaves nothing dirty"),
    "sm.cpcs": (1, "default: not told apart"),
    "noc.cpc_uplink": (1.0, "default: as much as its SMs can send"),
    "noc.gpc_uplink": (1.0, "default: as much as its SMs can send"),
    "noc.uplink": (1.0, "default: as much as all SMs can send"),
    "noc.cpc_step": (0, "default: all SMs as far from the L2"),
    "noc.tpc_step": (0, "default: all SMs as far from the L2"),
    "memory_side_cache.size": (0, "default: none"),
    "memory_side_cache.ways": (16, "estimate"),
    "memory_side_cache.bandwidth": ("inf", "default: no bottleneck"),
}
"""What a GPU file need not say: key → value, source."""


def derive(base: Values, given: Values) -> dict[str, tuple[Any, str]]:
    """Keys that follow from changing `base` by `given`: key → (new value, key that it follows)."""
    changes: dict[str, tuple[Any, str]] = {}
    changed = {key: value for key, value in given.items() if key not in base or _parse(given, key) != _parse(base, key)}
    for rule in (_sm_count, _gpcs, _sm_clock, _shared_memory, _l2_size, _l2_partitions, _hbm):
        for key, value, cause in rule(base, changed):
            if key not in given:
                changes[key] = (value, cause)
    return changes


def complete(values: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """`values` with everything filled in that follows from the rest, and sources of what was filled in."""
    full, sources = dict(values), dict[str, str]()

    def fill(key: str, value: Any, source: str) -> None:
        if key not in full:
            full[key], sources[key] = value, source

    if "hbm.standard" in full:
        standard = load_standard(_parse(full, "hbm.standard"))
        given = set(full)
        for key, value in standard.values.items():
            fill(key, value, standard.sources[key])
        full["hbm.standard"] = standard.name
        if {"hbm.bandwidth", "hbm.channels"} <= given:
            total = _parse(full, "hbm.channels") * _parse(full, "hbm.pseudo_channels")
            rate = _parse(full, "hbm.bandwidth") / max(1, total)
            for key in standard.follows_data_rate:
                if key not in given and 0 < rate < math.inf:
                    full[key] = _parse(full, key) * standard.reference_bytes_per_s / rate
                    sources[key] += "; scaled to the data rate"
        for key, (default, source) in _CONTROLLER.items():
            fill(key, default, source)
    for clock in ("sm.rated_clock", "sm.sustained_clock"):
        if "sm.clock" in full:
            fill(clock, full["sm.clock"], "as sm.clock")
    for key in KEYS:
        if key.startswith("sm.tensor_flops."):
            fill(key, 0, "not on the tensor cores")
    for key, (value, source) in DEFAULTS.items():
        fill(key, value, source)
    if {"l2.latency", "hbm.latency"} <= set(full):
        middle = (_parse(full, "l2.latency") + _parse(full, "hbm.latency")) / 2
        fill("memory_side_cache.latency", middle, "default: half-way between L2 and HBM")
    if "sm.count" in full:
        count = _parse(full, "sm.count")
        fill("sm.cta_order", list(range(count)), "default: SMs in order")
        fill("sm.warp_launch", 0, "default: in sm.cta_turnover")
        fill("sm.gpcs", 1, "default: not told apart")
        fill("sm.filled_first", 0, "default: a small grid is spread over the whole GPU")
        gpcs = max(1, _parse(full, "sm.gpcs"))
        fill("sm.gpc_of_sm", _gpc_of_sm(_parse(full, "sm.cta_order"), gpcs), "default: equal runs of the CTA order")
        cpcs = _cpc_of_sm(_parse(full, "sm.gpc_of_sm"), max(1, _parse(full, "sm.cpcs")))
        fill("sm.cpc_of_sm", cpcs, "default: TPCs of a GPC in turns")
        if "sm.read_port" in full:
            together = _parse(full, "sm.read_port") * -(-count // gpcs)
            fill("noc.gpc_port", f"{together:g}B/clk", "default: as much as the SMs of a GPC can take")
        if "l2.partitions" in full:
            halves = max(1, _parse(full, "l2.partitions"))
            fill("sm.partition_of_sm", _alternating(0, count, halves), "default: TPCs take turns")
        if "sm.partition_of_sm" in full:
            groups = _merge_groups(_parse(full, "sm.gpc_of_sm"), _parse(full, "sm.partition_of_sm"))
            fill("sm.merge_group_of_sm", groups, "default: the SMs of a GPC and partition")
    return full, sources


def _parse(values: Values, key: str) -> Any:
    """The value of `key` in base units; ValueError says which key is wrong."""
    try:
        return KEYS[key].parse(values[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _alternating(first: int, count: int, partitions: int) -> list[int]:
    """Partitions of SMs first … count-1 when the two SMs of a TPC share one and TPCs take turns."""
    return [(sm // 2) % partitions for sm in range(first, count)]


def _gpc_of_sm(order: list[int], gpcs: int) -> list[int]:
    """GPCs as runs of the CTA order (as on the H200), equal but for whole TPCs of two SMs."""
    gpc_of = [0] * len(order)
    tpcs = -(-len(order) // 2)
    for place, sm in enumerate(order):
        gpc_of[sm] = place // 2 * gpcs // tpcs
    return gpc_of


def _cpc_of_sm(gpc_of_sm: list[int], cpcs: int) -> list[int]:
    """CPCs, `cpcs` to a GPC, whose TPCs of two SMs go to them in turns (as on the H200)."""
    tpcs: dict[int, list[int]] = {}
    numbers: dict[tuple[int, int], int] = {}
    cpc_of = []
    for sm, gpc in enumerate(gpc_of_sm):
        known = tpcs.setdefault(gpc, [])
        if sm // 2 not in known:
            known.append(sm // 2)
        cpc_of.append(numbers.setdefault((gpc, known.index(sm // 2) % cpcs), len(numbers)))
    return cpc_of


def _merge_groups(gpcs: list[int], partitions: list[int]) -> list[int]:
    """Groups of the SMs that share GPC and partition, as on the H200; numbered in order of their first SM."""
    numbers: dict[tuple[int, int], int] = {}
    pairs = ((gpc, partitions[sm] if sm < len(partitions) else 0) for sm, gpc in enumerate(gpcs))
    return [numbers.setdefault(pair, len(numbers)) for pair in pairs]


def _ratio(base: Values, given: Values, key: str) -> float:
    """New over old value of `key`; 1 where it is not changed or was 0 or infinite."""
    if key not in given or key not in base:
        return 1.0
    old, new = _parse(base, key), _parse(given, key)
    return new / old if 0 < old < math.inf else 1.0


_Change = tuple[str, Any, str]


def _sm_count(base: Values, given: Values) -> Iterator[_Change]:
    if "sm.count" not in given:
        return
    count = _parse(given, "sm.count")
    if "sm.cta_order" in base:
        order = _parse(base, "sm.cta_order")
        kept = [sm for sm in order if sm < count]
        yield "sm.cta_order", kept + list(range(len(order), count)), "sm.count"
    if "sm.partition_of_sm" in base and "l2.partitions" not in given:
        known = list(_parse(base, "sm.partition_of_sm"))[:count]
        yield "sm.partition_of_sm", known + _alternating(len(known), count, _parse(base, "l2.partitions")), "sm.count"


def _gpcs(base: Values, given: Values) -> Iterator[_Change]:
    if not {"sm.count", "sm.gpcs"} & set(given) or "sm.gpcs" not in base:
        return
    cause = "sm.gpcs" if "sm.gpcs" in given else "sm.count"
    scaled = max(1, round(_parse(base, "sm.gpcs") * _ratio(base, given, "sm.count")))
    gpcs = _parse(given, "sm.gpcs") if "sm.gpcs" in given else scaled
    yield "sm.gpcs", gpcs, cause
    if "sm.gpc_of_sm" in base:
        count = _parse(given if "sm.count" in given else base, "sm.count")
        order = _parse(base, "sm.cta_order") if "sm.cta_order" in base else range(count)
        kept = [sm for sm in order if sm < count]
        yield "sm.gpc_of_sm", _gpc_of_sm(kept + list(range(len(kept), count)), max(1, gpcs)), cause


def _sm_clock(base: Values, given: Values) -> Iterator[_Change]:
    ratio = _ratio(base, given, "sm.clock")
    for key in ("sm.rated_clock", "sm.sustained_clock"):
        if ratio != 1 and key in base:
            yield key, _parse(base, key) * ratio, "sm.clock"


def _shared_memory(base: Values, given: Values) -> Iterator[_Change]:
    if "sm.shared_memory" not in given or "sm.shared_memory" not in base:
        return
    grown = _parse(given, "sm.shared_memory") - _parse(base, "sm.shared_memory")
    for key in ("sm.shared_memory_per_cta", "l1.size"):
        if key in base:
            yield key, max(0, _parse(base, key) + grown), "sm.shared_memory"


def _l2_size(base: Values, given: Values) -> Iterator[_Change]:
    if "l2.size" in given and "l2.dirty_cap" in base:
        cap, size = _parse(base, "l2.dirty_cap"), _parse(given, "l2.size")
        ratio = _ratio(base, given, "l2.size")
        yield "l2.dirty_cap", size if math.isinf(size) else round(cap * ratio) if cap < math.inf else cap, "l2.size"


def _l2_partitions(base: Values, given: Values) -> Iterator[_Change]:
    if "l2.partitions" not in given:
        return
    partitions = max(1, _parse(given, "l2.partitions"))
    if "sm.partition_of_sm" in base:
        count = _parse(given if "sm.count" in given else base, "sm.count")
        yield "sm.partition_of_sm", _alternating(0, count, partitions), "l2.partitions"
    if "l2.slices" in base and "l2.slices" not in given:
        old = _parse(base, "l2.slices")
        new = _nearest_multiple(old, partitions)
        yield "l2.slices", new, "l2.partitions"
        if new != old:
            yield "l2.slice_bandwidth", _parse(base, "l2.slice_bandwidth") * old / new, "l2.partitions"


def _hbm(base: Values, given: Values) -> Iterator[_Change]:
    stacks = _ratio(base, given, "hbm.stacks")
    cause = next((k for k in ("hbm.stacks", "hbm.channels", "hbm.standard", "l2.partitions") if k in given), None)
    if cause is None or "hbm.channels" not in base or "hbm.bandwidth" not in base:
        return
    old, new = complete(base)[0], complete({**base, **given})[0]
    per_stack = _parse(new, "hbm.channels_per_stack") / _parse(old, "hbm.channels_per_stack")
    partitions = max(1, _parse(new, "l2.partitions")) if "l2.partitions" in new else 1
    step = partitions // math.gcd(partitions, _parse(new, "hbm.pseudo_channels"))
    yield "hbm.channels", _nearest_multiple(_parse(base, "hbm.channels") * stacks * per_stack, step), cause
    if stacks != 1 and "hbm.size" in base:
        yield "hbm.size", round(_parse(base, "hbm.size") * stacks), cause
    growth = _ratio(base, given, "hbm.channels") / per_stack if "hbm.channels" in given else stacks
    if growth != 1:
        yield "hbm.bandwidth", _parse(base, "hbm.bandwidth") * growth, cause


def _nearest_multiple(value: float, step: int) -> int:
    return max(1, round(value / step)) * step
