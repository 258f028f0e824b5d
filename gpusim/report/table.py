"""A result as plain text, at most 110 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpusim.report.fields import (
    BYTE_FIELDS,
    Result,
    byte_count,
    hbm_bytes,
    hbm_ratio,
    intensity,
    labels,
    ratio,
    tensors_of,
)
from gpusim.report.text import facts, megabytes, percent, plain, short_shape, times

__all__ = ["WIDTH", "render"]

WIDTH = 110  # columns
_NAME = 20  # columns of a row's name at most
_TRAFFIC = {
    "dram_read_bytes": ("DRAM", "read"),
    "dram_write_bytes": ("DRAM", "write"),
    "l2_read_bytes": ("L2", "read"),
    "l2_write_bytes": ("L2", "write"),
    "fabric_bytes": ("", "fabric"),
    "sm_read_bytes": ("SM", "read"),
    "sm_write_bytes": ("SM", "write"),
    "shared_read_bytes": ("shared", "read"),
    "shared_write_bytes": ("shared", "write"),
    "dirty_bytes_left": ("dirty", "left"),
}


def render(results: Sequence[Result]) -> str:
    """All results one after another, and a comparison with the first when there are several.

    Times are in µs of the SM clock, bytes in MB (1e6).
    """
    names = labels(results)
    blocks = [_one(result, name) for result, name in zip(results, names, strict=True)]
    if len(results) > 1:
        blocks.append(_comparison(results, names))
    return "\n\n".join(blocks) + "\n"


def _one(result: Result, name: str) -> str:
    head = (
        f"{name} on {result['gpu']}: {short_shape(result['problem'])}"
        if " on " not in name
        else (f"{name}: {short_shape(result['problem'])}")
    )
    lines = [_clip(head, WIDTH)]
    if result["schedule"]:
        lines += _wrap(f"schedule {facts(result['schedule'])}")
    lines += ["=" * min(WIDTH, max(map(len, lines))), ""]
    lines += [*_kernels(result), "", *_traffic(result), "", *_closed_form(result)]
    return "\n".join(lines)


def _kernels(result: Result) -> list[str]:
    """CTAs, time and utilisation, a row per kernel and the total."""
    rows = [["kernel", "CTAs", "cycles", "time µs", "TFLOP/s", "L2 hit", "tensor", "DRAM"]]
    for kernel in result["kernels"]:
        rows.append(_kernel_row(str(kernel["name"]), kernel))
    return _grid([*rows, _kernel_row("total", result["total"])], rule_before={1, len(rows)})


def _kernel_row(name: str, kernel: Mapping[str, Any]) -> list[str]:
    speed = ratio(float(kernel["flops"] or 0), float(kernel["time_us"] or 0) * 1e6)
    return [
        name,
        plain(kernel["ctas"], 0),
        plain(kernel["cycles"], 0),
        plain(kernel["time_us"], 2),
        plain(speed, 1),
        percent(kernel["l2_hit_rate"]),
        percent(kernel["tensor_utilisation"]),
        percent(kernel["dram_utilisation"]),
    ]


def _traffic(result: Result) -> list[str]:
    """Bytes at every level: per kernel, in total, per tensor, in the same columns."""
    largest = max(byte_count(result["total"], key) for key, _ in BYTE_FIELDS)
    decimals = 2 if largest < 1e11 else 0
    heads = [_TRAFFIC[key] for key, _ in BYTE_FIELDS]
    rows = [["", *(top for top, _ in heads)], ["MB", *(bottom for _, bottom in heads)]]
    for kernel in result["kernels"]:
        rows.append(_byte_row(str(kernel["name"]), kernel, decimals))
    rules = {2, len(rows), len(rows) + 1}
    rows.append(_byte_row("total", result["total"], decimals))
    for tensor in tensors_of([result]):
        rows.append(_byte_row(tensor, result["by_tensor"].get(tensor, {}), decimals))
    return _grid(rows, rules)


def _byte_row(name: str, counters: Mapping[str, Any], decimals: int) -> list[str]:
    return [name, *(plain(byte_count(counters, key) / 1e6, decimals) for key, _ in BYTE_FIELDS)]


def _closed_form(result: Result) -> list[str]:
    """The textbook's HBM bytes and intensity next to the simulated ones."""
    closed, total = result["analytic"], result["total"]
    simulated = intensity(total)
    rows = [["HBM traffic", "MB", "FLOP/byte", "of closed form"]]
    rows.append(["closed form", megabytes(closed["hbm_bytes"]), plain(closed["arithmetic_intensity"]), ""])
    rows.append(["simulated", megabytes(hbm_bytes(total)), plain(simulated), times(hbm_ratio(result))])
    lines = _grid(rows, {1})
    if closed.get("formula"):
        lines += _wrap(f"closed form: {closed['formula']}")
    bound = f"; bound by {closed['bound']} in closed form" if closed.get("bound") else ""
    return [*lines, f"ridge point {plain(closed['ridge_point'])} FLOP/byte{bound}"]


def _comparison(results: Sequence[Result], names: Sequence[str]) -> str:
    """Every result against the first: time and bytes as ratios."""
    first = results[0]["total"]
    heads = ["", "time µs", "ratio", "HBM MB", "ratio", "L2 read MB", "ratio", "SM read MB", "ratio"]
    rows = [[f"against {names[0]}", *heads[1:]]]
    for result, name in zip(results, names, strict=True):
        total = result["total"]
        pairs = [(float(total["time_us"] or 0), float(first["time_us"] or 0), 1.0)]
        pairs += [(hbm_bytes(total), hbm_bytes(first), 1e6)]
        pairs += [(byte_count(total, k), byte_count(first, k), 1e6) for k in ("l2_read_bytes", "sm_read_bytes")]
        rows.append([name, *(cell for v, base, unit in pairs for cell in (plain(v / unit), times(ratio(v, base))))])
    return "\n".join(["comparison", "=" * 10, "", *_grid(rows, {1})])


def _grid(rows: list[list[str]], rule_before: set[int]) -> list[str]:
    """Aligned columns, the first to the left, the others to the right; a rule before the rows in `rule_before`."""
    rows = [[_clip(row[0], _NAME + 8), *row[1:]] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    spare = WIDTH - sum(widths) - (len(widths) - 1)
    gap = "  " if spare >= len(widths) - 1 else " "
    widths[0] = min(widths[0], max(8, WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1)))
    lines = []
    for index, row in enumerate(rows):
        cells = [_clip(row[0], widths[0]).ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        if index in rule_before:
            lines.append("-" * (sum(widths) + len(gap) * (len(widths) - 1)))
        lines.append(gap.join(cells).rstrip())
    return lines


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrap(text: str) -> list[str]:
    """`text` on lines of at most 110 columns, broken between words."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("  ")
        lines[-1] += word if not lines[-1].strip() else " " + word
    return [_clip(line, WIDTH) for line in lines]
