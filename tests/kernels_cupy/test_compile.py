"""Is a kernel compiled once, reported right, and an error said with the compiler's own words?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels_cupy.compile import KernelReport, compile_source, parse_log
from kernels_cupy.errors import CompileError
from kernels_cupy.kernel import KernelSpec, compile_all
from kernels_cupy.toolkit import architecture, include_folders

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    160 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 160 bytes cumulative stack size, 2048 bytes smem, 364 bytes cmem[0]
"""

COUNT = """extern "C" __global__ void count(int *x) {
    __shared__ int y[N];
    y[threadIdx.x] = x[0];
    __syncthreads();
    x[N] = y[*x];
}"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "count.cu"
    path.write_text(COUNT)
    return path


def test_is_the_report_of_every_kernel_read() -> None:
    assert list(parse_log(LOG)) == [
        KernelReport("first", 8, 0, 0, 0, 0),
        KernelReport("second", 254, 160, 12, 16, 2048),
    ]


def test_is_an_unknown_report_refused() -> None:
    with pytest.raises(CompileError, match="report on first has another form"):
        list(parse_log(LOG.replace("registers", "somethings")))


def test_is_a_kernel_compiled_once_per_content(source: Path) -> None:
    first = compile_source(source, {"N": 300}, "sm_90a")
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert first.reports["count"].static_shared_bytes == 1200
    written = first.path.stat().st_mtime_ns
    assert compile_source(source, {"N": 300}, "sm_90a") == first and first.path.stat().st_mtime_ns == written
    others = {compile_source(source, {"N": 301}, "sm_90a").path, compile_source(source, {"N": 300}, "sm_80").path}
    source.write_text(COUNT + "\n")
    others.add(compile_source(source, {"N": 300}, "sm_90a").path)
    assert len(others) == 3 and first.path not in others
    assert not list(first.path.parent.glob("*.tmp"))


def test_is_an_error_one_sentence_and_the_log(source: Path) -> None:
    with pytest.raises(CompileError) as error:
        compile_source(source, {"N": "nonsense"}, "sm_80")
    sentence, log = str(error.value).split("\n", 1)
    assert sentence.startswith("count.cu does not compile with --gpu-architecture=sm_80")
    assert "-DN=nonsense" in sentence
    assert 'identifier "nonsense" is undefined' in log


def test_are_the_headers_found() -> None:
    assert any((Path(folder) / "cuda_fp8.h").is_file() for folder in include_folders())


@pytest.mark.parametrize(("capability", "arch"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")])
def test_is_the_target_the_one_with_all_features(capability: tuple[int, int], arch: str) -> None:
    assert architecture(*capability) == arch


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_are_wrong_parameters_refused(arch: str, source: Path) -> None:
    source.write_text(
        'extern "C" __global__ void f(int *x, char a, short b, long long c, float d) { *x = a + b * c * d; }'
    )
    scalars = (np.int8(0), np.int16(0), np.int64(0), np.float32(0))
    spec = KernelSpec("f", source, "f", {}, (1, 1, 1), (1, 1, 1), 0, ("X",), scalars)
    assert spec.compile(arch).parameter_bytes("f") == (8, 1, 2, 8, 4)
    with pytest.raises(CompileError, match=r"kernel f of count.cu takes parameters of \(8, 1, 2, 8, 4\) bytes, but is"):
        replace(spec, counters=1).compile(arch)


def test_are_many_compiled_together(source: Path) -> None:
    specs = [KernelSpec("count", source, "count", {"N": n}, (1, 1, 1), (1, 1, 1), 0, ("X",)) for n in (50, 60, 50)]
    first, second, again = compile_all(specs, "sm_80")
    assert [c.reports["count"].static_shared_bytes for c in (first, second)] == [200, 240] and again == first


def test_is_a_broken_one_among_many_said(source: Path) -> None:
    specs = [KernelSpec("count", source, "count", {"N": n}, (1, 1, 1), (1, 1, 1), 0, ("X",)) for n in (50, "nonsense")]
    with pytest.raises(CompileError, match="-DN=nonsense"):
        compile_all(specs, "sm_80")


def test_is_a_cubin_of_another_machine_used(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compile_source(source, {"N": 300}, "sm_90a").path.parent
    monkeypatch.setenv("GPUSIM_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GPUSIM_CUBINS", str(made))
    assert compile_source(source, {"N": 300}, "sm_90a").path.parent == made
    assert compile_source(source, {"N": 400}, "sm_90a").path.parent == tmp_path / "elsewhere" / "cubin"
