"""`gpusim gpus`: the GPUs that are known, the figures of one with their sources, or two side by side."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpusim.cli.options import add_set_option, atomic_write, check_outputs
from gpusim.cli.tables import table
from gpusim.errors import UserError
from gpusim.spec.document import KEYS
from gpusim.spec.load import load_gpu, preset_names
from gpusim.spec.model import PRECISIONS, GpuSpec
from gpusim.spec.sources import KINDS, kind_of
from gpusim.spec.units import format_bandwidth, format_frequency, format_number, format_size

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.toml", help="show this GPU's figures and their sources")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="show two GPUs side by side")
    add_set_option(parser)
    parser.add_argument("--json", metavar="FILE|-", help="write JSON (- is standard output)")


def run(args: argparse.Namespace) -> int:
    if args.name is not None and args.compare is not None:
        raise UserError(f"give either a GPU ({args.name}) or --compare, not both")
    if args.overrides and args.name is None and args.compare is None:
        raise UserError(f"--set {args.overrides[0]} needs a GPU to change, such as gpusim gpus h200")
    check_outputs(args)
    names = args.compare or ([args.name] if args.name is not None else preset_names())
    specs = [load_gpu(name, args.overrides) for name in names]
    if args.json is not None:
        documents = [to_json(spec) for spec in specs]
        text = json.dumps(documents[0] if args.name is not None else documents, indent=1) + "\n"
        if args.json != "-":
            atomic_write(args.json, text)
        else:
            sys.stdout.write(text)
    elif args.compare is not None:
        print(_comparison(*specs))
    elif args.name is not None:
        print(_details(specs[0]))
    else:
        print(_overview(specs))
    return 0


def to_json(spec: GpuSpec) -> dict[str, Any]:
    """Every figure in base units (infinity as the text `inf`), what is derived from them, and the sources."""
    figures = {name: value for name, value in asdict(spec).items() if name not in ("sources", "document")}
    derived = {
        "l2_bytes_per_s": spec.l2_bytes_per_s,
        "hbm_bus_bits": spec.hbm.bus_bits,
        "hbm_pseudo_channels_total": spec.hbm.pseudo_channels_total,
        "peak_flops": {p: spec.peak_flops(p, "rated") for p in PRECISIONS},
        "ridge_point": {p: spec.ridge_point(p) for p in PRECISIONS},
    }
    whole: dict[str, Any] = _finite({**figures, "derived": derived})
    return {**whole, "sources": dict(spec.sources)}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value


@dataclass(frozen=True, slots=True)
class Level:
    """A row of the memory hierarchy: texts, and the bandwidth of the whole GPU in bytes/s where there is one."""

    name: str
    capacity: str
    bandwidth_bytes_per_s: float | None
    latency: str


def _levels(spec: GpuSpec) -> list[Level]:
    sm, l2, hbm = spec.sm, spec.l2, spec.hbm
    whole_gpu = sm.count * sm.clock_hz
    writing = sm.write_port_bytes_per_clk * whole_gpu

    def per_sm(size: float) -> str:
        return f"{format_size(size * sm.count)} ({format_size(size)} per SM)"

    def latency(cycles: float) -> str:
        return f"{format_number(cycles)} cycles ({format_number(cycles / sm.clock_hz * 1e9)} ns)"

    slices = f"{l2.partitions} x {l2.slices_per_partition} slices"
    channels = f"{hbm.stacks} {'devices' if hbm.standard.startswith('GDDR') else 'stacks'}, {hbm.bus_bits} bit"
    fabric = Level("L2 fabric", "", spec.noc.fabric_bytes_per_s, "+" + latency(spec.noc.fabric_latency_cycles))
    side = spec.memory_side_cache
    behind = Level(
        "memory-side cache", format_size(side.size_bytes), side.bandwidth_bytes_per_s, latency(side.latency_cycles)
    )
    return [
        Level("registers", per_sm(4 * sm.registers), None, ""),
        Level(
            "shared memory",
            per_sm(sm.shared_memory_bytes),
            sm.shared_bytes_per_clk * whole_gpu,
            latency(sm.shared_latency_cycles),
        ),
        Level("L1 + shared", per_sm(spec.l1.size_bytes), None, latency(spec.l1.latency_cycles)),
        Level("SM read ports", "", sm.read_port_bytes_per_clk * whole_gpu, ""),
        Level("SM write ports", "", writing, ""),
        *([Level("all SMs to L2", "", spec.noc.uplink * writing, "")] if spec.noc.uplink < 1 else []),
        Level("L2", f"{format_size(l2.size_bytes)} ({slices})", spec.l2_bytes_per_s, latency(l2.latency_cycles)),
        *([fabric] if l2.partitions > 1 else []),
        *([behind] if side.size_bytes else []),
        Level(
            hbm.standard,
            f"{format_size(hbm.size_bytes)} ({channels})",
            hbm.bandwidth_bytes_per_s,
            latency(hbm.latency_cycles),
        ),
    ]


def _overview(specs: list[GpuSpec]) -> str:
    header = [
        "GPU",
        "architecture",
        "SMs",
        "clock",
        "L2",
        "L2 bandwidth",
        "memory",
        "bandwidth",
        "FP16",
        "ridge point",
    ]
    rows = [
        [
            spec.name,
            spec.architecture,
            str(spec.sm.count),
            format_frequency(spec.sm.clock_hz),
            format_size(spec.l2.size_bytes),
            format_bandwidth(spec.l2_bytes_per_s),
            f"{format_size(spec.hbm.size_bytes)} {spec.hbm.standard}",
            format_bandwidth(spec.hbm.bandwidth_bytes_per_s),
            _tera(spec.peak_flops("fp16", "rated")),
            f"{spec.ridge_point('fp16'):.0f} FLOP/B",
        ]
        for spec in specs
    ]
    return table(rows, header, numeric=range(2, len(header)))


def _details(spec: GpuSpec) -> str:
    levels = [
        [
            level.name,
            level.capacity,
            "" if level.bandwidth_bytes_per_s is None else format_bandwidth(level.bandwidth_bytes_per_s),
            level.latency,
        ]
        for level in _levels(spec)
    ]
    rates = [
        [
            precision,
            str(spec.tensor_flops_per_clk(precision) or "lanes"),
            _tera(spec.peak_flops(precision, "rated")),
            _tera(spec.peak_flops(precision, "sustained")),
            f"{spec.ridge_point(precision):.1f}",
        ]
        for precision in PRECISIONS
    ]
    sm = spec.sm
    clocks = f"boost {format_frequency(sm.clock_hz)}, rated {format_frequency(sm.rated_clock_hz)}, "
    clocks += f"sustained {format_frequency(sm.sustained_clock_hz)}, L2 {format_frequency(spec.l2.clock_hz)}"
    exponentials = f"{sm.exp_per_clk * sm.count * sm.clock_hz / 1e12:.2f} T/s"
    rate_header = ["precision", "FLOP/clk/SM", "rated peak", "sustained peak", "ridge point (FLOP/B)"]
    sections = [
        f"{spec.name}: {spec.architecture}, compute capability {spec.compute_capability}, {sm.count} SMs",
        "Memory hierarchy\n" + table(levels, ["level", "capacity", "bandwidth", "latency"], numeric=[2]),
        "Rates\n" + table(rates, rate_header, numeric=[1, 2, 3, 4]),
        f"exponentials: {exponentials}; clocks: {clocks}",
        "Figures and sources\n" + table(_figures(spec), ["key", "value", "source"]),
        "Kinds of source\n" + table(_kinds(spec), ["kind", "figures", "meaning"], numeric=[1]),
    ]
    return "\n\n".join(sections)


def _figures(spec: GpuSpec) -> list[list[str]]:
    rows = []
    for path, key in KEYS.items():
        value: Any = spec
        for name in key.attribute.split("."):
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        if path != "name":
            rows.append([path, _shown(key.attribute, value), spec.sources.get(path, "")])
    return rows


def _kinds(spec: GpuSpec) -> list[list[str]]:
    """How many figures have a source of which kind."""
    counts = Counter(kind_of(spec.sources.get(path, "default")) for path in KEYS if path != "name")
    return [[kind, str(counts[kind]), meaning] for kind, meaning in KINDS.items() if counts[kind]]


def _shown(attribute: str, value: Any) -> str:
    """`value` with the unit that the attribute's name ends in."""
    if isinstance(value, tuple):
        return ",".join(map(str, value[:6])) + (",…" if len(value) > 6 else "")
    if isinstance(value, (bool, str)):
        return str(value).lower() if isinstance(value, bool) else value
    units: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("_bytes_per_clk", lambda v: f"{format_number(v)} B/clk"),
        ("_bytes_per_s", format_bandwidth),
        ("_bytes", format_size),
        ("_hz", format_frequency),
        ("_cycles", lambda v: f"{format_number(v)} cycles"),
        ("_ns", lambda v: f"{format_number(v)} ns"),
    )
    for suffix, text in units:
        if attribute.endswith(suffix):
            return text(value)
    return format_number(value)


def _comparison(first: GpuSpec, second: GpuSpec) -> str:
    rows = [
        [label, text(a), text(b), f"{b / a:.2f}" if 0 < a < math.inf else ""]
        for (label, a, text), (_, b, _) in zip(_compared(first), _compared(second), strict=True)
    ]
    return table(rows, ["", first.name, second.name, "ratio"], numeric=[1, 2, 3])


def _compared(spec: GpuSpec) -> list[tuple[str, float, Callable[[float], str]]]:
    """Label, number and how to show it, for each row of a comparison."""
    sm, l2, hbm = spec.sm, spec.l2, spec.hbm
    per_second = sm.clock_hz * sm.count
    rows: list[tuple[str, float, Callable[[float], str]]] = [
        ("SMs", sm.count, format_number),
        ("boost clock", sm.clock_hz, format_frequency),
        ("sustained clock", sm.sustained_clock_hz, format_frequency),
        ("registers per SM", 4 * sm.registers, format_size),
        ("shared memory per SM", sm.shared_memory_bytes, format_size),
        ("shared memory per CTA", sm.shared_memory_per_cta_bytes, format_size),
        ("shared memory bandwidth", sm.shared_bytes_per_clk * per_second, format_bandwidth),
        ("SM read ports", sm.read_port_bytes_per_clk * per_second, format_bandwidth),
        ("L2", l2.size_bytes, format_size),
        ("L2 slices", l2.slices, format_number),
        ("L2 partitions", l2.partitions, format_number),
        ("L2 bandwidth", spec.l2_bytes_per_s, format_bandwidth),
        ("L2 fabric bandwidth", spec.noc.fabric_bytes_per_s, format_bandwidth),
        ("HBM", hbm.size_bytes, format_size),
        ("HBM bandwidth", hbm.bandwidth_bytes_per_s, format_bandwidth),
        ("HBM bus", hbm.bus_bits, lambda v: f"{format_number(v)} bit"),
        ("shared memory latency", sm.shared_latency_cycles, _cycles),
        ("L1 latency", spec.l1.latency_cycles, _cycles),
        ("L2 latency", l2.latency_cycles, _cycles),
        ("HBM latency", hbm.latency_cycles, _cycles),
    ]
    rows += [(f"{p} peak", spec.peak_flops(p, "rated"), _tera) for p in PRECISIONS]
    rows += [(f"{p} ridge point", spec.ridge_point(p), lambda v: f"{v:.0f} FLOP/B") for p in PRECISIONS]
    return rows


def _cycles(value: float) -> str:
    return f"{format_number(value)} cycles"


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.0f} TFLOPS"
