"""Simulated against measured decoding bandwidth: TB/s of K and V read by PyTorch's attention with one query row.

python -m experiments.decode_speed --max-gb 0.6

Measured times are CUDA events around a whole call with a cold L2 (`experiments/measured/h200/torch_sdpa_speed.json`),
so those of tens of microseconds are mostly launch overhead, which is not simulated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from experiments.measurements import sdpa_speed
from gpusim.machine import simulate
from gpusim.plans import make_plan
from gpusim.spec import load_gpu
from traces.problem import AttentionProblem

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per shape; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.decode_speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--algorithm", default="decode_split", help="what to simulate (default decode_split)")
    parser.add_argument("--gpu", default="h200", help="GPU preset or file")
    parser.add_argument("--max-gb", type=float, default=float("inf"), help="skip shapes with more GB of K and V")
    options = parser.parse_args(arguments)
    gpu = load_gpu(options.gpu)
    print(f"{'':36} {'flash':>7} {'cuDNN':>7} {'simulated':>10}   TB/s of K and V")
    for (batch, heads, kv_heads, keys, dim), measured in _shapes().items():
        problem = AttentionProblem(batch=batch, heads=heads, kv_heads=kv_heads, seq=1, seq_kv=keys, dim=dim)
        cache_bytes = 2 * batch * kv_heads * keys * dim * 2
        if cache_bytes > options.max_gb * 1e9:
            continue
        total = simulate(make_plan(options.algorithm, problem, gpu), gpu, l2="cold").total()
        speed = cache_bytes / total.time_us / 1e6
        label = f"B{batch} H{heads} Hkv{kv_heads} M{keys} d{dim} ({cache_bytes / 1e6:.0f} MB)"
        print(f"{label:36} {measured['flash']:7.2f} {measured['cudnn']:7.2f} {speed:10.2f}", flush=True)
    return 0


def _shapes() -> dict[tuple[int, int, int, int, int], dict[str, float]]:
    """(batch, heads, KV heads, keys, dim) → backend → measured TB/s."""
    shapes: dict[tuple[int, int, int, int, int], dict[str, float]] = {}
    for row in sdpa_speed("h200")["decode"]:
        shape = row["B"], row["H"], row["Hkv"], row["M"], row["d"]
        shapes.setdefault(shape, {})[row["backend"]] = row["tbps"]
    return shapes


if __name__ == "__main__":
    sys.exit(main())
