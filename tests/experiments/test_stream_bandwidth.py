"""Do streaming kernels on the simulated H200 reach the bandwidths measured on the card?"""

from __future__ import annotations

import pytest

from experiments.stream_bandwidth import main, stream_bandwidth
from gpusim.spec import load_gpu

LOWEST, HIGHEST = {"read": 4.3, "write": 4.06 * 0.98, "copy": 4.08 * 0.98}, {"read": 4.6, "write": 4.14, "copy": 4.16}


@pytest.mark.parametrize("kind", ("read", "write", "copy"))
def test_is_the_h200_as_fast_as_measured(kind: str) -> None:
    rate, share = stream_bandwidth(load_gpu("h200"), kind)
    assert LOWEST[kind] <= rate <= HIGHEST[kind]
    assert 0.95 <= share <= 1


def test_does_refresh_of_all_banks_cost_its_share_of_the_time() -> None:
    overrides = ["hbm.read_efficiency=1", "hbm.refresh=all_bank"]
    gpu = load_gpu("h200", overrides)
    awake = 1 - gpu.hbm.timing.rfc_ab_ns / gpu.hbm.timing.refi_ns
    peak = gpu.hbm.bandwidth_bytes_per_s / 1e12
    assert 0.97 * awake <= stream_bandwidth(gpu, "read", 256)[0] / peak <= 1.005 * awake


def test_does_the_command_print_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mib", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["read", "write", "copy"]
