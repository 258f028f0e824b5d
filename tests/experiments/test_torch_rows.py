"""Do the tables say what was measured and simulated?"""

import io
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from experiments.row_errors import QUANTITIES, KernelRow, judge, summary, table, write_csv
from experiments.torch_rows import Job, run_job, select
from traces.launch import Plan


def mapped(algorithm: str, config: str):  # type: ignore[no-untyped-def]
    (found,) = [m for m in select(["warm"]) if (m.call.algorithm, m.call.config) == (algorithm, config)]
    return found


@dataclass
class FakeMachine:
    """Returns the measured kernels with some fields scaled."""

    kernels: tuple[object, ...]
    scaled: dict[str, float]
    l2: str = ""

    def __call__(self, plan: Plan, l2: str) -> SimpleNamespace:
        self.l2 = l2
        kernels = []
        for launch, measured in zip(plan.launches, self.kernels, strict=True):
            values = {q.field: getattr(measured, q.field) * self.scaled.get(q.field, 1) for q in QUANTITIES}
            kernels.append(SimpleNamespace(name=launch.name, **values))
        return SimpleNamespace(kernels=kernels, sectors_per_second=5e6)


def rows(scaled: dict[str, float], config: str = "B1_H1_N4096_d128") -> tuple[KernelRow, ...]:
    m = mapped("naive", config)
    return run_job(Job(m, "h200"), FakeMachine(m.call.kernels, scaled)).rows


def test_a_perfect_simulation_has_no_error_and_meets_the_target() -> None:
    for row in rows({}):
        assert all(not row.error(q) for q in QUANTITIES)
        assert judge(row).hit_rate and judge(row).cycles and judge(row).dram is not False


def test_the_target_is_ten_percent_of_hbm_bytes_and_twenty_of_cycles() -> None:
    softmax = rows({"dram_read_bytes": 1.09, "dram_write_bytes": 1.09, "cycles": 1.21})[1]
    assert (judge(softmax).dram, judge(softmax).cycles) == (True, False)
    assert judge(rows({"dram_read_bytes": 0.89, "dram_write_bytes": 0.89})[1]).dram is False


def test_little_hbm_traffic_is_not_judged_in_percent() -> None:
    m = mapped("cudnn", "B1_H1_N8192_d128")
    row = run_job(Job(m, "h200"), FakeMachine(m.call.kernels, {"dram_read_bytes": 1000})).rows[0]
    assert judge(row).dram is None
    assert row.error(QUANTITIES[0]) is None


def test_cold_measurements_are_simulated_with_a_flush_before_every_kernel() -> None:
    (m,) = select(["cold"], "naive", "B1_H1_N4096")
    machine = FakeMachine(m.call.kernels, {})
    run_job(Job(m, "h200"), machine)
    assert machine.l2 == "flush"


def test_table_summary_and_csv() -> None:
    simulated = rows({"l2_read_bytes": 1.5})
    text = table(simulated)
    assert "+50.0" in text and "HBM total 97.2 MB measured" in text
    assert "L2 read 50.0" in summary(simulated) and "3/3" in summary(simulated)
    file = io.StringIO()
    write_csv(simulated, file)
    assert len(file.getvalue().splitlines()) == 4


@pytest.mark.parametrize(
    ("only", "count"), [("naive", 7), ("cudnn", 14), ("naive_bwd", 3), ("flash_bwd", 3), ("decode_flash", 4), ("", 31)]
)
def test_selection_by_path(only: str, count: int) -> None:
    assert len(select(["warm"], only)) == count


def test_selection_by_size_and_label() -> None:
    small = select(["warm", "cold"], max_gb=1)
    assert small and all(sum(k.sm_read_bytes for k in m.call.kernels) <= 1e9 for m in small)
    assert {m.call.config for m in select(["warm"], match="H32_N8192")} == {"B1_H32_N8192_d128"}
