"""Made-up but plausible results in the JSON contract: 32 heads, N = 4096, d = 128 on an H200, cold L2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

T = dict[str, float]

MACHINE = {
    "sm_count": 132,
    "clock_hz": 1.755e9,
    "peak_flops": 9.4e14,
    "hbm_bytes_per_second": 4.814e12,
    "l2_bytes_per_second": 8.7e12,
    "l2_bytes": 60 * 2**20,
}
PROBLEM = {"batch": 1, "heads": 32, "kv_heads": 32, "seq": 4096, "seq_kv": 4096, "dim": 128, "dtype": "fp16"}
FIELDS = ("dram_read", "dram_write", "l2_read", "l2_write", "fabric", "sm_read", "sm_write", "shared_read")
MIB = 2**20
BIN = 2000.0


def naive() -> dict[str, Any]:
    """Three kernels that keep S and P in HBM."""
    score = 1024 * MIB
    small = 32 * MIB
    scores = _kernel(
        "scores",
        8192,
        540_000,
        1.374e11,
        0.62,
        0.62,
        0.0,
        {"Q": _t(read=small, l2=8 * small), "K": _t(read=small, l2=4 * small), "S": _t(write=score, left=26 * MIB)},
    )
    softmax = _kernel(
        "softmax",
        131072,
        935_000,
        2.1e9,
        0.03,
        0.0,
        540_000,
        {"S": _t(read=score - 20 * MIB, l2=score), "P": _t(write=score, left=27 * MIB)},
    )
    output = _kernel(
        "output",
        4096,
        560_000,
        1.374e11,
        0.41,
        0.66,
        1_475_000,
        {
            "P": _t(read=score - 22 * MIB, l2=score),
            "V": _t(read=small, l2=32 * small),
            "O": _t(write=small, left=8 * MIB),
        },
    )
    return _result(
        "naive",
        {"tile_m": 128, "tile_n": 128, "stages": 3},
        [scores, softmax, output],
        {"hbm_bytes": 4.0 * score + 4 * small, "bound": "memory", "formula": "h · (8·N² + 8·N·d) bytes, fp16"},
    )


def flash2() -> dict[str, Any]:
    """One kernel; K and V are read again by every row block, mostly from the L2."""
    small = 32 * MIB
    kernel = _kernel(
        "flash2_forward",
        1024,
        702_000,
        2.75e11,
        0.94,
        0.58,
        0.0,
        {
            "Q": _t(read=small, l2=small),
            "K": _t(read=1.13 * small, l2=19.6 * small),
            "V": _t(read=1.18 * small, l2=20.3 * small),
            "O": _t(write=small, left=12 * MIB),
            "LSE": _t(write=MIB // 2, left=MIB // 4),
        },
    )
    return _result(
        "flash2",
        {"tile_q": 128, "tile_kv": 64, "stages": 1, "kv_order": "backward"},
        [kernel],
        {"hbm_bytes": 4.0 * small + MIB // 2, "bound": "compute", "formula": "h · (8·N·d + 4·N) bytes, fp16"},
    )


def both() -> list[dict[str, Any]]:
    """naive and flash2."""
    return [naive(), flash2()]


def _t(read: float = 0, write: float = 0, l2: float = 0, left: float = 0) -> T:
    """Byte fields of one tensor: HBM reads, stores, L2 reads, and what of the stores stays in the L2."""
    return {
        "dram_read_bytes": int(read),
        "dram_write_bytes": int(write - left),
        "l2_read_bytes": int(l2),
        "l2_write_bytes": int(write),
        "fabric_bytes": int(0.5 * (read + write)),
        "sm_read_bytes": int(1.6 * l2),
        "sm_write_bytes": int(write),
        "shared_read_bytes": int(3.2 * l2),
        "shared_write_bytes": int(1.6 * l2),
        "dirty_bytes_left": int(left),
    }


def _sum(parts: list[T]) -> T:
    return {key: sum(part[key] for part in parts) for key in _t()}


def _kernel(
    name: str, ctas: int, cycles: int, flops: float, hit: float, tensor: float, start: float, by_tensor: Mapping[str, T]
) -> dict[str, Any]:
    counters = _sum(list(by_tensor.values()))
    seconds = cycles / MACHINE["clock_hz"]
    moved = counters["dram_read_bytes"] + counters["dram_write_bytes"]
    return {
        "name": name, "ctas": ctas, "cycles": cycles, "time_us": seconds * 1e6, "flops": flops, "l2_hit_rate": hit,
        "tensor_utilisation": tensor, "dram_utilisation": moved / seconds / MACHINE["hbm_bytes_per_second"],
        "start_cycle": start, "by_tensor": dict(by_tensor), **counters,
    }  # fmt: skip


def _result(
    name: str, schedule: dict[str, Any], kernels: list[dict[str, Any]], analytic: dict[str, Any]
) -> dict[str, Any]:
    tensors = list(dict.fromkeys(t for kernel in kernels for t in kernel["by_tensor"]))
    by_tensor = {t: _sum([k["by_tensor"][t] for k in kernels if t in k["by_tensor"]]) for t in tensors}
    cycles = sum(k["cycles"] for k in kernels)
    ctas, flops = sum(k["ctas"] for k in kernels), sum(k["flops"] for k in kernels)
    total = _kernel("total", ctas, cycles, flops, 0, 0, 0, by_tensor)
    for key in ("l2_hit_rate", "tensor_utilisation"):
        total[key] = sum(k[key] * k["cycles"] for k in kernels) / cycles
    del total["by_tensor"], total["start_cycle"]
    return {
        "gpu": "H200", "algorithm": name, "problem": {**PROBLEM, "causal": False}, "schedule": schedule,
        "machine": dict(MACHINE), "kernels": kernels, "total": total, "by_tensor": by_tensor,
        "analytic": {
            **analytic, "flops": flops, "arithmetic_intensity": flops / analytic["hbm_bytes"],
            "ridge_point": MACHINE["peak_flops"] / MACHINE["hbm_bytes_per_second"],
        },
        "timeline": _timeline(kernels, tensors, cycles), "wall_seconds": 4.2, "sectors_per_second": 3.1e7,
    }  # fmt: skip


def _timeline(kernels: list[dict[str, Any]], tensors: list[str], cycles: float) -> dict[str, Any]:
    count = math.ceil(cycles / BIN)
    levels = ("dram_read", "dram_write", "fabric", "l2_read", "l2_write")
    moved = {level: {t: [0.0] * count for t in tensors} for level in levels}
    rows = {key: [0.0] * count for key in ("hit", "lookup", "tensor", "vector", "wait")}
    for kernel in kernels:
        first, last = int(kernel["start_cycle"] / BIN), int((kernel["start_cycle"] + kernel["cycles"]) / BIN)
        weights = [1 + 0.25 * math.sin(i * 0.35) + 0.1 * math.sin(i * 1.7) for i in range(first, last)]
        weights[0] *= 0.3
        weights[-1] *= 0.2
        scale = sum(weights)
        top = max(weights)
        for offset, weight in enumerate(weights):
            for tensor, counters in kernel["by_tensor"].items():
                for level in levels:
                    moved[level][tensor][first + offset] += counters[f"{level}_bytes"] * weight / scale
            lookups = (kernel["l2_read_bytes"] + kernel["l2_write_bytes"]) / 32 * weight / scale
            sm_cycles = BIN * MACHINE["sm_count"] * min(1.0, weight / top * 1.05)
            rows["lookup"][first + offset] += lookups
            wave = 1 + 0.05 * math.sin(offset * 0.2)
            rows["hit"][first + offset] += lookups * min(1.0, kernel["l2_hit_rate"] * wave)
            busy = kernel["tensor_utilisation"]
            rows["tensor"][first + offset] += sm_cycles * busy
            rows["vector"][first + offset] += sm_cycles * 0.22
            rows["wait"][first + offset] += sm_cycles * max(0.0, 0.72 - busy)
    return {
        "bin_cycles": BIN, "bytes": moved, "l2_hit_sectors": rows["hit"], "l2_lookup_sectors": rows["lookup"],
        "tensor_busy_cycles": rows["tensor"], "vector_busy_cycles": rows["vector"], "memory_wait_cycles": rows["wait"],
    }  # fmt: skip
