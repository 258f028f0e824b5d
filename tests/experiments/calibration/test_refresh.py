"""Are length and distance of refreshes found in the latencies of single reads, and does the H200 here have them?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from experiments.calibration.refresh import refresh_of
from gpusim.memory.access import read_tile
from gpusim.memory.state import MemorySystem
from gpusim.spec import load_gpu
from kernels_cupy.commented_csv import read_rows
from kernels_cupy.microbench.memory_latency import BIN_CYCLES, LINE_BYTES
from traces.dtypes import DTYPES
from traces.tensor import TensorTable

MEASURED = Path(__file__).parents[3] / "experiments" / "measured" / "h200" / "memory_latency.csv"
READS = 20_000


def binned(cycles: np.ndarray) -> dict[float, float]:
    return {float(edge): float(n) for edge, n in Counter((cycles // BIN_CYCLES * BIN_CYCLES).tolist()).items()}


@pytest.mark.parametrize("cycles, share", [(300.0, 0.05), (570.0, 0.15), (800.0, 0.3)])
def test_are_refreshes_of_a_known_length_found(cycles: float, share: float) -> None:
    random = np.random.default_rng(2)
    way = np.where(random.random(READS) < 0.5, 570.0, 750.0) + random.normal(0, 15, READS)
    waits = np.where(random.random(READS) < share, cycles * random.random(READS), 0.0)
    found = refresh_of(binned(way + waits), BIN_CYCLES)
    assert found is not None
    assert found.cycles == pytest.approx(cycles, rel=0.15)
    assert found.share == pytest.approx(share, rel=0.25)


def test_do_reads_of_the_simulated_h200_wait_as_long_and_as_often_as_on_the_card() -> None:
    gpu = load_gpu("h200")
    table = TensorTable()
    data = table.add("A", (1, 1, 1 << 22, LINE_BYTES // 2), DTYPES["fp16"])
    memory = MemorySystem(gpu, table.tensors)
    memory.run_at(gpu)
    lines = np.random.default_rng(1).permutation(data.size_bytes // LINE_BYTES)[: READS // 4]
    took, now = [], 0.0
    for line in lines.tolist():
        address = data.base + line * LINE_BYTES
        end = float(read_tile(memory.state, 0, 0, address, 1, LINE_BYTES, LINE_BYTES, 0, 1, now))
        took.append(end - now)
        now = end + 50
    measured = {float(row["cycles"]): float(row["reads"]) for row in read_rows(MEASURED)}
    card, here = refresh_of(measured, BIN_CYCLES), refresh_of(binned(np.array(took)), BIN_CYCLES)
    assert card is not None and here is not None
    assert here.cycles == pytest.approx(card.cycles, rel=0.1)
    assert here.share == pytest.approx(card.share, rel=0.2)
