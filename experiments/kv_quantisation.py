"""What a quantised KV cache costs in accuracy and saves in bytes: every format, scale and choice of K and V.

python -m experiments.kv_quantisation
python -m experiments.kv_quantisation --html kv.html --gpu h100-sxm

Errors are those of FlashAttention-2's tile program on dequantised tiles against attention in float64 on the numbers
before quantisation; fp16 is the floor. Bytes, HBM traffic and time are simulated for a decoding step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusim.cli.options import add_machine_options, atomic_write, check_file, gpu_from
from gpusim.cli.progress import Progress
from gpusim.cli.tables import table
from gpusim.errors import UserError
from gpusim.machine import simulate
from gpusim.plans import make_plan
from gpusim.spec import GpuSpec
from traces import numeric
from traces.algorithms import ALGORITHMS
from traces.dtypes import DTYPES
from traces.launch import Plan
from traces.problem import KV_SCALES, AttentionProblem
from traces.quantise import quantised_cache

__all__ = ["CACHES", "Accuracy", "Decoding", "accuracies", "decodings", "main", "probability_errors", "schemes"]

Array = NDArray[np.float32]

SHAPE: dict[str, Any] = {"heads": 4, "kv_heads": 2, "seq": 32, "seq_kv": 1024, "dim": 128}
DECODE_SHAPE: dict[str, Any] = {"batch": 8, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 4096, "dim": 128}
OUTLIERS = 4
"""Channels of each head's K that stick out, and that `outlier_channels` keeps in fp16."""

Settings = dict[str, str | int]


def schemes() -> dict[str, Settings]:
    """Name → problem fields: fp16, and each format for K, V or both, by scale, with and without outlier channels."""
    found: dict[str, Settings] = {"fp16": {}}
    for scale in KV_SCALES:
        pairs = [(k, v) for k in ("fp16", "int8", "fp8") for v in ("fp16", "int8", "fp8")]
        for k, v in pairs:
            for outliers in (0, OUTLIERS) if k != "fp16" else (0,):
                kept = f" + {outliers} channels fp16" if outliers else ""
                settings: Settings = {"kv_dtype": k, "v_dtype": v, "kv_scale": scale, "outlier_channels": outliers}
                if (k, v) != ("fp16", "fp16"):
                    found[f"K {k}{kept}, V {v}, per {scale}"] = settings
    return found


def plain_cache(p: AttentionProblem, generator: np.random.Generator) -> tuple[Array, Array]:
    """K and V of normal numbers."""
    shape = (p.batch, p.kv_heads, p.seq_kv)
    k, v = (generator.standard_normal((*shape, dim), np.float32) for dim in (p.dim, p.dim_v))
    return k, v


def outlier_cache(p: AttentionProblem, generator: np.random.Generator) -> tuple[Array, Array]:
    """The same, but `OUTLIERS` channels of each head's K are 20 to 100 times as large, in every token, of one sign.

    So are keys of language models (arXiv:2402.02750, figure 2; arXiv:2401.18079, figure 2); a tenth of the magnitude
    varies from token to token.
    """
    k, v = plain_cache(p, generator)
    for head in range(p.kv_heads):
        channels = generator.choice(p.dim, OUTLIERS, replace=False)
        level = generator.uniform(20, 100, OUTLIERS) * generator.choice((-1, 1), OUTLIERS)
        k[:, head, :, channels] = (level[:, None, None] * (1 + 0.1 * k[:, head, :, channels])).astype(np.float32)
    return k, v


CACHES = {"no outliers": plain_cache, f"{OUTLIERS} outlier channels in K": outlier_cache}


@dataclass(frozen=True)
class Accuracy:
    """One scheme on one kind of cache.

    Attributes:
        token_bytes: K, V, scales and outliers per token and KV head.
        output_error, lse_error: relative L2 distance of O and LSE from float64 without quantisation.
    """

    cache: str
    scheme: str
    settings: Settings
    token_bytes: float
    output_error: float
    lse_error: float


def accuracies(seed: int = 0, match: str = "") -> Iterator[Accuracy]:
    """Every scheme whose name contains `match` on every kind of cache, in order."""
    module = ALGORITHMS["flash2"]
    for kind, draw in CACHES.items():
        plain, generator = AttentionProblem(**SHAPE), np.random.default_rng(seed)
        k, v = (DTYPES["fp16"].round(x) for x in draw(plain, generator))
        shape = (plain.batch, plain.heads, plain.seq, plain.dim)
        q = DTYPES["fp16"].round(generator.standard_normal(shape, np.float32))
        output, lse = _exact(plain, q, k, v)
        for name, settings in ((n, s) for n, s in schemes().items() if match in n):
            p = AttentionProblem(**SHAPE | settings)
            plan = module.plan(p, module.default_schedule(p, "wgmma", 132))
            found = numeric.run(plan, {"Q": q} | quantised_cache(p, k, v))
            errors = _relative(found["O"], output), _relative(found["LSE"][:, :, 0], lse)
            yield Accuracy(kind, name, settings, cache_bytes(plan) / (p.kv_heads * p.seq_kv), *errors)


def cache_bytes(plan: Plan) -> int:
    """K and V with all that belongs to them."""
    return sum(plan.tensor(name).size_bytes for name in plan.inputs if name != "Q")


def _exact(p: AttentionProblem, q: Array, k: Array, v: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(O, LSE) in float64."""
    keys, values = (np.repeat(x.astype(float), p.group, axis=1) for x in (k, v))
    scores = q.astype(float) @ keys.swapaxes(2, 3) * p.scale
    lse = np.logaddexp.reduce(scores, axis=3)
    return np.exp(scores - lse[..., None]) @ values, lse


def _relative(found: NDArray[Any], right: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


SINK = "attention sink"
SCORES = {"flat": (1.0, 0.0), "peaked": (4.0, 0.0), SINK: (1.0, 10.0)}
"""Kinds of rows of P: standard deviation of the scores, and how far the first key's is above the others.

The V of a sink is close to zero (arXiv:2410.13835), so that O is made of the small probabilities.
"""


def probability_errors(seed: int = 0) -> dict[str, dict[str, tuple[float, float]]]:
    """Kind of row → format of P → (relative L2 error of O = P V, share of the probability that rounds to zero).

    P is exp(S - row maximum), at most 1; times the format's largest number where it is quantised, the best fixed scale.
    """
    generator = np.random.default_rng(seed)
    v = generator.standard_normal((SHAPE["seq_kv"], SHAPE["dim"]))
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for kind, (spread, above) in SCORES.items():
        scores = spread * generator.standard_normal((256, len(v)))
        scores[:, 0] += above
        values = v * np.where(np.arange(len(v)) == 0, 0.01, 1)[:, None] if kind == SINK else v
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        total = p.sum(axis=1, keepdims=True)
        found[kind] = {}
        for name in ("fp16", "bf16", "fp8", "int8"):
            largest = DTYPES[name].largest or 1.0
            rounded = DTYPES[name].round(p * largest).astype(float) / largest
            lost = float((p * (rounded == 0) / total).sum(axis=1).mean())
            found[kind][name] = _relative(rounded @ values / total, p @ values / total), lost
    return found


@dataclass(frozen=True)
class Decoding:
    """A simulated decoding step.

    Attributes:
        algorithm: what decodes.
        hbm_bytes: read and written.
        scale_bytes: of them, read for scales and outlier channels.
        time_us: of all kernels.
    """

    scheme: str
    algorithm: str
    hbm_bytes: int
    scale_bytes: int
    time_us: float


DECODED = (
    "fp16",
    "K fp16, V fp8, per token",
    "K fp8, V fp8, per token",
    "K fp8, V fp8, per head",
    "K int8, V int8, per token",
    "K int8, V int8, per channel",
    f"K int8 + {OUTLIERS} channels fp16, V fp8, per token",
)


DECODER = "decode_split" if "decode_split" in ALGORITHMS else "flash2"
"""Flash-Decoding; without it split-KV FlashAttention-2, whose query heads read the cache of their group each."""


def decodings(gpu: GpuSpec) -> Iterator[Decoding]:
    """One decoding step under some schemes."""
    for name in DECODED:
        plan = make_plan(DECODER, AttentionProblem(**DECODE_SHAPE | schemes()[name]), gpu)
        result = simulate(plan, gpu)
        total, by_tensor = result.total(), result.to_dict()["by_tensor"]
        beside = sum(by_tensor[n]["dram_read_bytes"] for n in plan.inputs if n not in ("Q", "K", "V"))
        moved = total.dram_read_bytes + total.dram_write_bytes
        yield Decoding(name, plan.algorithm, moved, beside, total.time_us)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.kv_quantisation", description=(__doc__ or "").split("\n")[0]
    )
    add_machine_options(parser, l2=False)
    parser.add_argument("--html", metavar="FILE", help="write a page with figures")
    parser.add_argument("--seed", type=int, default=0, help="of the random K, V and Q (default 0)")
    options = parser.parse_args(arguments)
    try:
        gpu = gpu_from(options)
        if options.html:
            check_file("--html", Path(options.html))
        rows, steps = [], []
        with Progress("accuracy", len(CACHES) * len(schemes()), "runs") as progress:
            for row in accuracies(options.seed):
                rows.append(row)
                progress(len(rows) / len(CACHES) / len(schemes()))
        with Progress("decoding", len(DECODED), "schemes") as progress:
            for step in decodings(gpu):
                steps.append(step)
                progress(len(steps) / len(DECODED))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    probabilities = probability_errors(options.seed)
    for title, head, cells in tables(rows, probabilities, steps):
        print(f"{title}\n{table(cells, head, numeric=range(1, len(head)))}\n")
    if options.html:
        from experiments.kv_quantisation_page import render_page

        atomic_write(options.html, render_page(rows, tables(rows, probabilities, steps), gpu.name))
    return 0


Table = tuple[str, list[str], list[list[str]]]


def tables(
    rows: Sequence[Accuracy], probabilities: dict[str, dict[str, tuple[float, float]]], steps: Sequence[Decoding]
) -> list[Table]:
    """(title, header, rows) of everything found, as text."""
    found: list[Table] = []
    for cache in CACHES:
        head = ["scheme", "B/token", "O error %", "LSE error %"]
        cells = [
            [r.scheme, f"{r.token_bytes:.1f}", f"{100 * r.output_error:.3f}", f"{100 * r.lse_error:.4f}"]
            for r in rows
            if r.cache == cache
        ]
        found.append((f"Keys and values with {cache}; bytes per token and KV head", head, cells))
    formats = ("fp16", "bf16", "fp8", "int8")
    head = ["rows of P", *(f"{f}: O error %" for f in formats), *(f"{f}: lost %" for f in ("fp8", "int8"))]
    cells = [
        [kind, *(f"{100 * of[f][0]:.3f}" for f in formats), *(f"{100 * of[f][1]:.2f}" for f in ("fp8", "int8"))]
        for kind, of in probabilities.items()
    ]
    found.append(("P in low precision would save no byte of HBM", head, cells))
    first = steps[0].time_us
    head = ["scheme", "HBM MB", "of them scales MB", "time us", "of fp16"]
    cells = [
        [s.scheme, *map("{:.2f}".format, (s.hbm_bytes / 1e6, s.scale_bytes / 1e6, s.time_us, s.time_us / first))]
        for s in steps
    ]
    shape = ", ".join(f"{name} {value}" for name, value in DECODE_SHAPE.items())
    found.append((f"Simulated decoding step ({DECODER}; {shape})", head, cells))
    return found


if __name__ == "__main__":
    sys.exit(main())
