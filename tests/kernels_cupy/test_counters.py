"""Are Nsight Compute's tables read right, and is everything that can be missing said in one sentence?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from kernels_cupy import counters
from kernels_cupy.errors import Unavailable
from tests.kernels_cupy.compiling import plan_of

HEADER = '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'


def table(kernels: dict[str, dict[str, str]]) -> str:
    """What ncu prints of kernels of different names."""
    return rows(list(kernels.items()))


def rows(kernels: Sequence[tuple[str, dict[str, str]]]) -> str:
    """What ncu prints of launches: its own lines, then the CSV."""
    lines = [
        f'"{number}","7","{name}","(1, 1, 1)","{metric}","byte","{value}"'
        for number, (name, metrics) in enumerate(kernels)
        for metric, value in metrics.items()
    ]
    return "\n".join(["==PROF== Connected to process 7", "", HEADER, *lines, ""])


def values(**changed: str) -> dict[str, str]:
    """Metric n has the value 1000 (n + 1)."""
    return {metric: f"{1000 * (n + 1):,}" for n, metric in enumerate(counters.METRICS)} | changed


def test_are_sectors_turned_into_bytes_and_fields_named_like_the_simulators() -> None:
    kernel, other = counters.parse(table({"qk(const half *, int)": values(), "pv": values()}))
    assert kernel["name"] == "qk" and other["name"] == "pv"
    assert kernel["dram_read_bytes"] == 1000 and kernel["dram_write_bytes"] == 2000
    assert kernel["l2_read_bytes"] == 3000 * 32 and kernel["l2_write_bytes"] == 4000 * 32
    assert kernel["fabric_bytes"] == 5000 * 32
    assert kernel["sm_read_bytes"] == 6000 and kernel["sm_write_bytes"] == 7000
    assert kernel["cycles"] == 8000 and kernel["time_us"] == 11
    assert kernel["l2_hit_rate"] == 9000 / 19000


def test_does_the_total_weigh_hit_rates_by_lookups() -> None:
    cold = values(**{counters.HITS: "0", counters.MISSES: "3,000"})
    warm = values(**{counters.HITS: "1,000", counters.MISSES: "0"})
    total = counters.total(counters.parse(table({"qk": cold, "pv": warm})))
    assert total["l2_hit_rate"] == 0.25 and total["dram_read_bytes"] == 2000


def test_is_a_rate_of_nothing_no_number() -> None:
    (kernel,) = counters.parse(table({"empty": values(**{counters.HITS: "0", counters.MISSES: "0"})}))
    assert math.isnan(kernel["l2_hit_rate"])


def test_is_a_counter_that_the_card_lacks_named() -> None:
    with pytest.raises(Unavailable, match=r"no value of lts__t_sectors_srcunit_ltcfabric\.sum for kernel qk"):
        counters.parse(table({"qk": values(**{"lts__t_sectors_srcunit_ltcfabric.sum": "n/a"})}))


def test_is_a_missing_ncu_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "require_gpu", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"Nsight Compute \(ncu\) is not on the PATH; it comes with"):
        counters.measure_counters(plan_of("naive", seq=64), "warm")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", "may not read the GPU's counters; run as root"),
        ("echo broken >&2; exit 3", "ncu failed with status 3:\nbroken"),
        ("exit 0", "ncu measured 0 kernels where 3 were launched"),
    ],
)
def test_is_a_failing_ncu_explained(
    script: str, message: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    tool = folder / "ncu"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(counters, "require_gpu", lambda: None)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    with pytest.raises(Unavailable, match=message):
        counters.measure_counters(plan_of("naive", seq=64), "warm")


def test_is_a_run_that_takes_too_long_ended(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ncu").write_text("#!/bin/sh\nsleep 60\n")
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    with pytest.raises(Unavailable, match="ncu was not done in 0 s"):
        counters.run_ncu([], ["none"], 0.2)


def test_are_launches_of_a_micro_benchmark_counted_in_order(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    said = '"ID","Kernel Name","Metric Name","Metric Value"\n"1","copy","a.sum","5"\n"0","copy","a.sum","1,234"'
    (folder / "ncu").write_text(f"#!/bin/sh\necho '{said}'\necho \"$@\" > {folder}/arguments\n")
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert counters.count_launches("copy", {"first": "a.sum"}, ["some.module", "--launch"]) == [
        {"first": 1234}, {"first": 5}
    ]  # fmt: skip
    given = (folder / "arguments").read_text()
    assert "-k copy --metrics a.sum" in given and "-m some.module --launch" in given
