"""PyTorch's attention, timed like ours. Importing this module needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels_cupy.gpu import Gpu
from kernels_cupy.stopwatch import Stopwatch
from traces.problem import AttentionProblem

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def torch_times(problem: AttentionProblem, gpu: Gpu, repeat: int, work: str = "forward") -> dict[str, float]:
    """Median µs of a call, L2 cold: `naive` (matmul, softmax, matmul) and each backend that takes the problem.

    `naive` leaves the causal mask out: the products are full in any case. It is left out for a single query row.

    Args:
        work: `forward`, or `backward` for the gradients alone.
    """
    p, stopwatch = problem, Stopwatch(gpu)
    shapes = {"q": (p.heads, p.seq, p.dim), "k": (p.kv_heads, p.seq_kv, p.dim), "v": (p.kv_heads, p.seq_kv, p.dim_v)}
    q, k, v = (torch.randn(p.batch, *s, dtype=DTYPES[p.dtype], device="cuda") for s in shapes.values())
    calls: dict[str, Callable[[], Any]] = {}
    if p.seq > 1:
        calls["naive"] = partial(_naive, q * p.scale, k, v, p.group)
    calls |= {name: partial(_backend, backend, q, k, v, p) for name, backend in BACKENDS.items()}
    if work == "backward":
        do = torch.randn(p.batch, p.heads, p.seq, p.dim_v, dtype=DTYPES[p.dtype], device="cuda")
        inputs = [x.requires_grad_() for x in (q, k, v)]
        calls = {name: partial(_gradients, call, inputs, do) for name, call in calls.items()}
    times = {}
    for name, call in calls.items():
        try:
            if work == "backward":
                call = call()  # runs the forward pass, and gives what runs backward from it
            for _ in range(3):
                call()
        except (RuntimeError, torch.cuda.OutOfMemoryError):
            continue  # the backend does not take this problem
        times[name] = float(np.median([stopwatch.time([call], "cold")[0] for _ in range(repeat)]))
    del q, k, v, calls
    torch.cuda.empty_cache()
    return times


def _gradients(call: Callable[[], Any], inputs: list[Any], do: Any) -> Callable[[], Any]:
    return partial(torch.autograd.grad, call(), inputs, do, retain_graph=True)


def _naive(q: Any, k: Any, v: Any, group: int) -> Any:
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1), v)


def _backend(backend: Any, q: Any, k: Any, v: Any, p: AttentionProblem) -> Any:
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=p.causal and p.seq == p.seq_kv, enable_gqa=p.group > 1
        )
