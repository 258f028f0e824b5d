"""Does the runner measure what is missing, keep what is there, and survive a benchmark that fails?"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernels_cupy import calibrate
from kernels_cupy.calibrate import BENCHMARKS, DEVICE, GPCS, PARTITIONS, measure_all, source_hash
from kernels_cupy.counters import NOT_PERMITTED
from kernels_cupy.errors import Unavailable

CARD = "0123456789ab"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules that were run; each writes its file with the right hash, and `gpcs` fails."""
    ran: list[str] = []
    by_module = {f"kernels_cupy.microbench.{b.module}": b for b in BENCHMARKS}

    def run(command: list[str], cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        benchmark = by_module[command[2]]
        ran.append(benchmark.module)
        (cwd / benchmark.output).write_text("half of it")
        if benchmark.output == GPCS:
            return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: this card is odd")
        assert all((cwd / name).is_file() for name in command[6::2]), "files of other benchmarks are where it is told"
        facts = {"source_sha256": source_hash(benchmark), "card": CARD}
        text = (
            json.dumps(facts)
            if benchmark.output.endswith(".json")
            else f"# source_sha256: {source_hash(benchmark)}\nx\n"
        )
        (cwd / benchmark.output).write_text(text)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(calibrate, "require_gpu", lambda: None)
    monkeypatch.setattr(calibrate, "card", lambda: CARD)
    monkeypatch.setattr(calibrate, "ncu_version", lambda: "1")
    monkeypatch.setattr(calibrate.subprocess, "run", run)
    return ran


def states(folder: Path, *only: str) -> dict[str, str]:
    return {outcome.benchmark.output: outcome.state for outcome in measure_all(folder, lambda text: None, only)}


def test_is_everything_measured_but_what_fails_and_what_needs_it(runs: list[str], tmp_path: Path) -> None:
    found = states(tmp_path / "new" / "folder")
    assert found.pop(GPCS) == "failed"
    assert {found.pop(name) for name in ("sm_bandwidth.csv", "sm_writes.csv")} == {"left out"}
    assert set(found.values()) == {"measured"}
    assert not (tmp_path / "new" / "folder" / GPCS).exists(), "no half of a file"
    assert not (tmp_path / "new" / "folder" / ".unfinished").exists()


def test_is_only_the_missing_or_outdated_measured_again(runs: list[str], tmp_path: Path) -> None:
    states(tmp_path)
    runs.clear()
    (tmp_path / PARTITIONS).unlink()
    (tmp_path / "rates.csv").write_text("# source_sha256: of other kernels\nx\n")
    (tmp_path / "launch.json").write_text("{ no JSON")
    found = states(tmp_path)
    assert runs == ["partitions", "gpcs", "rates", "launch"]
    assert found["latency.csv"] == "kept"


def test_are_files_of_counters_left_out_without_ncu(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_ncu() -> str:
        raise Unavailable("Nsight Compute (ncu) is not on the PATH")

    monkeypatch.setattr(calibrate, "ncu_version", no_ncu)
    said: list[str] = []
    outcomes = measure_all(tmp_path, said.append)
    assert {o.state for o in outcomes if o.benchmark.counters} == {"left out"}
    assert said[0].startswith("no counters: Nsight Compute (ncu) is not on the PATH; what they would have said")


def test_is_ncu_not_tried_again_that_may_not_read_counters(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = calibrate.subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = allowed(command, **options)
        said = f"capacity: {NOT_PERMITTED}; run as root"
        is_counting = any(b.counters for b in BENCHMARKS if command[2].endswith(f".{b.module}"))
        return subprocess.CompletedProcess(command, 1, "", said) if is_counting else done

    monkeypatch.setattr(calibrate.subprocess, "run", run)
    found = states(tmp_path)
    assert {found[b.output] for b in BENCHMARKS if b.counters} == {"left out"}
    assert sum(b.module in runs for b in BENCHMARKS if b.counters) == 1


def test_are_measurements_of_another_card_not_mixed_in(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states(tmp_path, DEVICE)
    monkeypatch.setattr(calibrate, "card", lambda: "ba9876543210")
    with pytest.raises(ValueError, match="holds measurements of another card than this one"):
        states(tmp_path)


def test_is_an_unknown_file_refused(runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--only nothing.csv is not one of device.json, partitions.json"):
        states(tmp_path, "nothing.csv")


@pytest.mark.gpu
def test_does_this_gpu_fill_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_why_no_counters", lambda: "not in this test")
    assert set(states(tmp_path, DEVICE, PARTITIONS, "launch.json").values()) == {"measured"}
    again = states(tmp_path)
    assert again[DEVICE] == "kept" and again["l2_capacity_reads.csv"] == "left out"
    assert json.loads((tmp_path / DEVICE).read_text())["sm_count"] > 0
    pytest.importorskip("simpy", reason="what reads the folder needs gpusim's own packages")
    from gpusim.cli.main import main

    assert main(["calibrate", "-o", str(tmp_path / "mine.toml"), "--measurements", str(tmp_path), "--no-fit"]) == 0
    assert main(["gpus", str(tmp_path / "mine.toml")]) == 0
