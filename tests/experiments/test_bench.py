"""Does the benchmark report what it ran?"""

import json
import subprocess
import sys

import pytest

from experiments.bench import BenchResult


def test_text_names_the_best_and_the_median_run() -> None:
    result = BenchResult("flash2 small", 10_000_000, (2.5, 2.0, 3.0), 5e6, 0.1, 1.0, 0.01, 300_000_000, 12345.0)
    text = result.text()
    assert "5.00 M" in text and "2.00 s best, 2.50 s median of 3" in text and "0.32 GB" in text and "300 MB" in text


def test_a_small_benchmark_as_json() -> None:
    pytest.importorskip("gpusim.machine")
    command = [
        sys.executable,
        "-m",
        "experiments.bench",
        "--heads",
        "1",
        "--seq",
        "512",
        "--repeat",
        "1",
        "--json",
        "-",
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    data = json.loads(output)
    reads = 4 * (128 + 2 * 512) * 128 * 2
    writes = 512 * 128 * 2 + 512 * 4
    assert data["sm_port_sectors"] == (reads + writes) // 32
    assert data["sectors_per_second"] > 0 and data["peak_rss_bytes"] > 10_000_000


def test_bad_input_ends_with_a_failure() -> None:
    command = [sys.executable, "-m", "experiments.bench", "--algorithm", "flash9", "--repeat", "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
