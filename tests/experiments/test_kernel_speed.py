"""Are our kernels held to the ratios that are asked of them, and to no others?"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.kernel_speed import Ratio, judged, main, shapes
from kernels_cupy.algorithms import kernels, make_plan
from traces.problem import AttentionProblem

PREFILL = AttentionProblem(heads=32, seq=4096, dim=128)
CACHE = AttentionProblem(batch=16, heads=32, kv_heads=8, seq=1, seq_kv=4096, dim=128)
CACHE_BYTES = 16 * 8 * 4096 * 2 * 128 * 2
TORCH = {"naive": 1800.0, "flash": 500.0, "cudnn": 400.0}


def test_is_naive_held_to_nine_tenths_of_torch_and_flash_to_all_of_it() -> None:
    lines = judged("forward", PREFILL, {"naive": 2000.0, "flash2": 501.0}, TORCH, 4.0, {})
    ratios = {line.name: line.ratios for line in lines}
    assert ratios["naive"] == (Ratio("torch naive", 0.9, 0.9),) and ratios["naive"][0].met
    assert ratios["flash2"][0].against == "torch flash" and not ratios["flash2"][0].met
    assert ratios["torch flash"] == ratios["torch cudnn"] == ()
    assert lines[1].rate == pytest.approx(4 * 32 * 4096**2 * 128 / 501 / 1e6) and lines[1].unit == "TFLOP/s"


@pytest.mark.parametrize(("causal", "time_us", "met"), [(False, 499.0, True), (True, 501.0, False)])
def test_is_the_backward_pass_of_wide_heads_held_to_all_of_torch(causal: bool, time_us: float, met: bool) -> None:
    wide = AttentionProblem(heads=32, seq=4096, dim=256, causal=causal)
    assert ("backward", wide) in list(shapes())
    (line, *_) = judged("backward", wide, {"flash2_backward": time_us}, TORCH, 4.0, {})
    assert [ratio.met for ratio in line.ratios] == [met]


@pytest.mark.parametrize("shape", [{"dim": 256}, {"seq": 1024}])
def test_are_shapes_without_a_target_only_timed(shape: dict[str, int]) -> None:
    (line, *_) = judged("forward", AttentionProblem(heads=32, **shape), {"flash2": 1.0}, TORCH, 4.0, {})
    assert line.ratios == ()


def test_is_decoding_held_to_the_better_backend_and_to_copies() -> None:
    time_us = CACHE_BYTES / 4.0e6  # 4 TB/s
    torch = {"flash": 2 * time_us, "cudnn": 1.25 * time_us}
    lines = judged("decode", CACHE, {"decode_split": time_us, "decode": time_us}, torch, 5.0, {})
    assert lines[0].rate == pytest.approx(4.0) and lines[0].unit == "TB/s"
    cudnn, copies = lines[0].ratios
    assert (cudnn.against, cudnn.value, cudnn.met) == ("torch cudnn", pytest.approx(1.25), True)
    assert (copies.against, copies.value, copies.met) == ("copy bandwidth", pytest.approx(0.8), False)
    assert lines[1].ratios == ()  # nothing is asked of `decode`


def test_is_an_eight_bit_cache_held_to_tokens_per_second() -> None:
    eight = AttentionProblem(batch=16, heads=32, kv_heads=8, seq=1, seq_kv=4096, dim=128, kv_dtype="fp8")
    (line,) = judged("decode", eight, {"paged_decode": 10.0}, {}, 4.0, {"paged_decode": 18.0})
    assert line.ratios == (Ratio("16-bit cache", 1.8, 1.7),)


def test_is_every_shape_one_that_some_kernel_does() -> None:
    names = {"decode": "decode_split", "forward": "flash2", "backward": "flash2_backward"}
    for work, problem in shapes():
        assert kernels(make_plan(names[work], problem, 132))


def test_is_an_unknown_algorithm_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flsh2"]) == 2
    assert capsys.readouterr().err.startswith("kernel_speed: error: algorithm 'flsh2' has no CUDA kernels")


def test_are_a_runs_kernels_compiled_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["naive", "--compile", str(tmp_path / "cubins")]) == 0
    made = {path.name.partition("-")[0] for path in (tmp_path / "cubins").glob("*.cubin")}
    assert made == {"gemm", "naive", "between"} and len(list((tmp_path / "cubins").glob("*.json"))) > 2
