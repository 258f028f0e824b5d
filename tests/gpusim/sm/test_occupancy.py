"""How many CTAs does an SM hold? By the rules of the CUDA occupancy calculator, worked out by hand for the H200."""

from __future__ import annotations

import pytest

from gpusim.errors import UserError
from gpusim.sm.occupancy import ctas_per_sm
from gpusim.spec import load_gpu
from traces.launch import CtaResources

KIB = 1024


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    (
        (1024, 32, 0, 2),  # 2048 threads
        (1024, 33, 0, 1),  # 40 registers after rounding, 40 x 1024 of 65536
        (128, 255, 0, 2),  # 256 x 128 = half of the registers
        (128, 128, 0, 4),
        (128, 129, 0, 3),  # rounds to 136
        (32, 16, 0, 32),  # CTA slots
        (33, 16, 0, 32),  # two warps each, threads allow 62
        (384, 168, 128 * KIB, 1),  # a warp-specialised GEMM
        (128, 32, 113 * KIB, 2),  # 113 + 1 reserved, twice, is all 228 KiB
        (128, 32, 113 * KIB + 1, 1),
        (128, 32, 227 * KIB, 1),  # the largest a CTA may have
        (512, 32, 56 * KIB, 4),
    ),
)
def test_does_the_tightest_resource_decide(threads: int, registers: int, shared: int, expected: int) -> None:
    assert ctas_per_sm(load_gpu("h200"), CtaResources(threads, registers, shared), "k") == expected


@pytest.mark.parametrize(
    ("need", "words"),
    (
        (CtaResources(128, 32, 227 * KIB + 1), "shared memory"),
        (CtaResources(4096, 16, 0), "threads"),
        (CtaResources(1024, 72, 0), "registers"),
    ),
)
def test_does_a_cta_that_does_not_fit_say_why(need: CtaResources, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ctas_per_sm(load_gpu("h200"), need, "k")
