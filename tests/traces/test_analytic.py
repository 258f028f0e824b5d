"""Do the closed forms give the literature's numbers?"""

from __future__ import annotations

import pytest

from tests.traces.problems import ATTENTION, default_plan
from traces.analytic import analytic, compulsory_bytes, sm_port_bytes, textbook, total
from traces.footprint import MIB, footprint, footprint_table
from traces.launch import Plan
from traces.problem import AttentionProblem


@pytest.mark.parametrize("seq, megabytes, intensity", [(4096, 137.4, 62.5), (8192, 543.2, 63.3), (16384, 2160.1, 63.6)])
def test_is_naive_8nn_plus_6nd(seq: int, megabytes: float, intensity: float) -> None:
    form = analytic(default_plan("naive", heads=1, seq=seq, dim=128))
    assert form["hbm_bytes"] == 8 * seq**2 + 6 * seq * 128
    assert form["flops"] == 4 * seq**2 * 128
    assert round(form["hbm_bytes"] / 1e6, 1) == megabytes
    assert round(form["arithmetic_intensity"], 1) == intensity


@pytest.mark.parametrize("algorithm", ["flash2", "flash3"])
def test_is_flash_8nd(algorithm: str) -> None:
    form = analytic(default_plan(algorithm, heads=1, seq=4096, dim=128))
    assert form["hbm_bytes"] == 8 * 4096 * 128 == 4194304
    assert form["arithmetic_intensity"] == 2048


@pytest.mark.parametrize("algorithm", ATTENTION)
def test_do_batch_heads_and_bytes_per_element_scale_the_forms(algorithm: str) -> None:
    one = total(textbook(default_plan(algorithm, heads=1, seq=512)))
    assert total(textbook(default_plan(algorithm, batch=3, heads=4, seq=512, dtype="fp32"))) == 24 * one
    few, many = (textbook(default_plan(algorithm, heads=8, kv_heads=n, seq=512)) for n in (2, 8))
    assert 4 * few["K"][0] == many["K"][0] and few["Q"] == many["Q"]


def test_is_compulsory_traffic_once_per_tensor_and_direction() -> None:
    assert compulsory_bytes(default_plan("naive", heads=2, seq=256, dim=64)) == {
        "Q": (65536, 0),
        "K": (65536, 0),
        "V": (65536, 0),
        "S": (262144, 262144),
        "P": (262144, 262144),
        "O": (0, 65536),
    }
    assert compulsory_bytes(default_plan("flash2", heads=2, kv_heads=1, seq=256, dim=64)) == {
        "Q": (65536, 0),
        "K": (32768, 0),
        "V": (32768, 0),
        "O": (0, 65536),
        "LSE": (0, 2048),
    }


@pytest.mark.parametrize("algorithm", ATTENTION)
@pytest.mark.parametrize("causal", [False, True])
def test_do_sm_ports_carry_at_least_the_compulsory_bytes(algorithm: str, causal: bool) -> None:
    plan = default_plan(algorithm, heads=4, kv_heads=2, seq=300, seq_kv=500, causal=causal)
    ports, least = sm_port_bytes(plan), compulsory_bytes(plan)
    assert all(ports[name][way] >= least[name][way] for name in least for way in (0, 1))


def test_is_an_algorithm_without_a_form_refused_by_name() -> None:
    plan = Plan("guess", AttentionProblem(), None, (), (), (), ())
    with pytest.raises(ValueError, match="algorithm 'guess' is not one of naive, naive_online_softmax, "):
        textbook(plan)


@pytest.mark.parametrize(
    "seq, dim, mebibytes",
    [
        (2048, 64, (24, 256, 256, 8, 544)),
        (8192, 128, (192, 4096, 4096, 64, 8448)),
        (32768, 128, (768, 65536, 65536, 256, 132096)),
    ],
)
def test_is_the_footprint_of_naive_known(seq: int, dim: int, mebibytes: tuple[int, ...]) -> None:
    sizes = footprint(default_plan("naive", heads=32, seq=seq, dim=dim))
    assert dict(zip(("Q/K/V", "S", "P", "O", "total"), (m * MIB for m in mebibytes), strict=True)) == sizes


def test_is_the_footprint_table_readable() -> None:
    table = footprint_table([default_plan("naive", seq=n, dim=d) for n, d in ((2048, 64), (8192, 128))])
    assert table.splitlines() == [
        "B   H     N    d  Q/K/V MiB   S MiB   P MiB  O MiB  total MiB",
        "1  32  2048   64       24.0   256.0   256.0    8.0      544.0",
        "1  32  8192  128      192.0  4096.0  4096.0   64.0     8448.0",
    ]
    with pytest.raises(ValueError, match="same tensors"):
        footprint_table([default_plan("naive", seq=64), default_plan("flash2", seq=64)])
