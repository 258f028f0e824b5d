"""Do the micro-benchmarks compile for every GPU, without spilling, and with the instructions that it has?"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_cupy import calibrate
from kernels_cupy.compile import compile_source
from tests.kernels_cupy.compiling import ARCHITECTURES

SOURCES = sorted(calibrate.MICROBENCH.glob("*.cu"))
TMA = ("merging", "merge_groups")
"""Copy tiles by bulk copies, which GPUs before Hopper do not have."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_does_it_compile_without_spills(source: Path, arch: str) -> None:
    if source.stem in TMA and arch == "sm_80":
        pytest.skip("bulk copies need sm_90")
    compiled = compile_source(source, {}, arch)
    assert compiled.reports
    assert all(report.spill_store_bytes == report.spill_load_bytes == 0 for report in compiled.reports.values())
    assert "warning" not in compiled.log


@pytest.mark.parametrize(
    ("arch", "wgmma", "fp8"), [("sm_80", False, False), ("sm_90a", True, True), ("sm_100a", False, True)]
)
def test_has_the_gpu_the_instructions_that_are_timed(arch: str, wgmma: bool, fp8: bool) -> None:
    entries = compile_source(calibrate.MICROBENCH / "rates.cu", {}, arch).reports
    assert ("wgmma_fp16" in entries) == wgmma and ("mma_fp8" in entries) == fp8
    assert {"mma_fp16", "fma_fp32", "exp_fp32", "shared_read"} <= set(entries)


def test_is_every_benchmark_there() -> None:
    for benchmark in calibrate.BENCHMARKS:
        assert (calibrate.MICROBENCH / f"{benchmark.module}.py").is_file()
        assert len(calibrate.source_hash(benchmark)) == 64
        assert all(name in {b.output for b in calibrate.BENCHMARKS} for _, name in benchmark.needs)
