"""The HTML of a report's cards and tables. All text from a result is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpusim.report.colours import result_colour, tensor_colour
from gpusim.report.fields import BYTE_FIELDS, Result, byte_count, hbm_bytes, hbm_ratio, intensity, ratio
from gpusim.report.roofline import points
from gpusim.report.text import amount, human_bytes, megabytes, percent, plain, times

__all__ = [
    "comparison",
    "details",
    "dot",
    "grid",
    "kernel_table",
    "roofline_table",
    "summary",
    "tensor_table",
    "titled",
]


def dot(colour: str) -> str:
    """A small square in `colour`."""
    return f'<span class="dot" style="background:{colour}" aria-hidden="true"></span>'


def titled(index: int, label: str, body: str) -> str:
    """A card for result number `index`."""
    return f'<div class="card"><h3>{dot(result_colour(index))}{escape(label)}</h3>{body}</div>'


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", total: int = -1, name: str = "") -> str:
    """A table; the first cell of a row is its heading and may hold markup, the other cells are plain text.

    Args:
        total: index of the row to set apart; -1 is none.
        name: what a screen reader calls the scrolling region.
    """
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        mark = ' class="total"' if index == total else ""
        lines.append(f'<tr{mark}><th scope="row">{row[0]}</th>{cells}</tr>')
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    table = f"<table>{said}<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name or caption)}">{table}</div>'


def summary(result: Result) -> str:
    """The four numbers one asks for first."""
    total, closed = result["total"], result["analytic"]
    speed = ratio(float(total["flops"] or 0), float(total["time_us"] or 0) * 1e-6)
    read, write = byte_count(total, "dram_read_bytes"), byte_count(total, "dram_write_bytes")
    return '<dl class="tiles">' + "".join(
        (
            _tile("Time", f"{_grouped(total['time_us'])} µs", f"{_grouped(total['cycles'], 0)} cycles",
                  amount(speed, "FLOP/s"),
                  f"tensor cores {percent(total['tensor_utilisation'])}"),
            _tile("HBM bytes", human_bytes(hbm_bytes(total)),
                  f"{human_bytes(read)} read", f"{human_bytes(write)} written",
                  f"{percent(total['dram_utilisation'])} of HBM peak"),
            _tile("L2 hit rate", percent(total["l2_hit_rate"]),
                  f"{human_bytes(byte_count(total, 'l2_read_bytes'))} read from L2",
                  f"{human_bytes(byte_count(total, 'fabric_bytes'))} over the fabric"),
            _tile("Against closed form", times(hbm_ratio(result)),
                  f"closed form {human_bytes(float(closed['hbm_bytes'] or 0))}",
                  f"bound by {closed['bound']}" if closed.get("bound") else ""),
        )
    ) + "</dl>"  # fmt: skip


def _tile(title: str, big: str, *subs: str) -> str:
    below = "".join(f'<dd class="sub">{escape(sub)}</dd>' for sub in subs if sub)
    return f'<div class="tile"><dt>{escape(title)}</dt><dd class="big">{escape(big)}</dd>{below}</div>'


def _grouped(value: float | None, decimals: int = 1) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"


def comparison(results: Sequence[Result], names: Sequence[str]) -> str:
    """All results against the first, a row per quantity."""
    head = ["", *names, *(f"{name} / {names[0]}" for name in names[1:])]
    totals = [result["total"] for result in results]
    quantities = [("Time (µs)", [float(t["time_us"] or 0) for t in totals], 1.0)]
    quantities.append(("HBM read + write (MB)", [hbm_bytes(t) for t in totals], 1e6))
    quantities += [(f"{label} (MB)", [byte_count(t, key) for t in totals], 1e6) for key, label in BYTE_FIELDS]
    rows = []
    for title, values, unit in quantities:
        ratios = [times(ratio(value, values[0])) for value in values[1:]]
        rows.append([title, *(_grouped(value / unit, 2) for value in values), *ratios])
    return grid(head, rows, name="Comparison")


def kernel_table(result: Result, label: str) -> str:
    """A row per kernel and the total."""
    head = ["Kernel", "CTAs", "Cycles", "Time (µs)", "GFLOP", "L2 hit", "Tensor", "HBM use"]
    head += [f"{label} (MB)" for _, label in BYTE_FIELDS]
    rows = [_kernel_row(escape(str(kernel["name"])), kernel) for kernel in result["kernels"]]
    rows.append(_kernel_row("Total", result["total"]))
    return grid(head, rows, total=len(rows) - 1, name=f"Kernels of {label}")


def _kernel_row(name: str, kernel: Mapping[str, Any]) -> list[str]:
    shares = [percent(kernel[key]) for key in ("l2_hit_rate", "tensor_utilisation", "dram_utilisation")]
    numbers = [_grouped(kernel["ctas"], 0), _grouped(kernel["cycles"], 0), _grouped(kernel["time_us"], 2)]
    return [name, *numbers, _grouped(float(kernel["flops"] or 0) / 1e9, 2), *shares, *_bytes(kernel)]


def _bytes(counters: Mapping[str, Any]) -> list[str]:
    return [megabytes(byte_count(counters, key), grouped=True) for key, _ in BYTE_FIELDS]


def tensor_table(result: Result, tensors: Sequence[str], label: str) -> str:
    """A row per tensor of the result and their sum."""
    own = [tensor for tensor in tensors if tensor in result["by_tensor"]]
    head = ["Tensor", *(f"{title} (MB)" for _, title in BYTE_FIELDS)]
    rows = [[dot(tensor_colour(tensors, t)) + escape(t), *_bytes(result["by_tensor"][t])] for t in own]
    sums = {key: sum(byte_count(result["by_tensor"][t], key) for t in own) for key, _ in BYTE_FIELDS}
    rows.append(["Sum", *_bytes(sums)])
    return grid(head, rows, total=len(rows) - 1, name=f"Tensors of {label}")


def roofline_table(results: Sequence[Result], names: Sequence[str]) -> str:
    """Every point of the roofline, also those that a logarithmic axis cannot show."""
    head = ["Point", "FLOP per byte", "FLOP/s", "Ridge point", "Side of the ridge"]
    rows = []
    for index, (result, name) in enumerate(zip(results, names, strict=True)):
        ridge = result["analytic"]["ridge_point"]
        for point in points(result, name):
            local = _l2_ridge(result) if point.what == "total at the L2" else ridge
            side = "–"
            if point.intensity and local:
                side = "memory" if point.intensity < local else "compute"
            title = f"{dot(result_colour(index))}{escape(f'{name}: {point.name}')}"
            rows.append([title, plain(point.intensity, 1), amount(point.flops, "FLOP/s"), plain(local, 1), side])
    return grid(head, rows, name="Points of the roofline")


def _l2_ridge(result: Result) -> float | None:
    machine = result["machine"]
    return ratio(float(machine["peak_flops"]), float(machine["l2_bytes_per_second"]))


def details(result: Result) -> str:
    """Problem, schedule, machine and the closed form as lists of facts."""
    machine, closed = result["machine"], result["analytic"]
    hardware = {
        "GPU": result["gpu"],
        "SMs": machine["sm_count"],
        "SM clock": amount(machine["clock_hz"], "Hz"),
        "Peak": amount(machine["peak_flops"], "FLOP/s"),
        "HBM bandwidth": amount(machine["hbm_bytes_per_second"], "B/s"),
        "L2 bandwidth": amount(machine["l2_bytes_per_second"], "B/s"),
        "L2 size": f"{float(machine['l2_bytes']) / 2**20:.1f} MiB",
    }
    theory = {
        "HBM bytes": f"{megabytes(closed['hbm_bytes'], grouped=True)} MB",
        "Simulated": f"{megabytes(hbm_bytes(result['total']), grouped=True)} MB",
        "Intensity": f"{plain(closed['arithmetic_intensity'], 1)} FLOP/B",
        "Simulated intensity": f"{plain(intensity(result['total']), 1)} FLOP/B",
        "Ridge point": f"{plain(closed['ridge_point'], 1)} FLOP/B",
        "Bound": closed.get("bound", "–"),
    }
    run = {
        "Wall time": f"{plain(result.get('wall_seconds'), 2)} s",
        "Speed": amount(result.get("sectors_per_second"), "sector/s"),
    }
    groups = {"Problem": result["problem"], "Schedule": result["schedule"], "Machine": hardware, "Closed form": theory}
    lists = "".join(_facts(title, values) for title, values in {**groups, "Simulation": run}.items() if values)
    formula = f'<p class="formula">Closed form: {escape(str(closed["formula"]))}</p>' if closed.get("formula") else ""
    return f'<div class="facts">{lists}</div>{formula}'


def _facts(title: str, values: Mapping[str, Any]) -> str:
    pairs = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in values.items() if v is not None)
    return f"<div><h4>{escape(title)}</h4><dl>{pairs}</dl></div>"
