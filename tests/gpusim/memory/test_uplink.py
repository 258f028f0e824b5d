"""Do SMs that send to the L2 share what their CPC, their GPC and the L2 let through?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusim.memory.access import write_tile
from gpusim.memory.state import MemorySystem
from gpusim.memory.uplink import send, still_sending
from gpusim.spec import load_gpu
from kernels_cupy.commented_csv import read_rows
from tests.gpusim.memory.systems import KIB, system, tensors

H200 = load_gpu("h200")
MEASURED = Path(__file__).parents[3] / "experiments" / "measured" / "h200" / "sm_writes.csv"
WORK = 10_000.0


def finish(memory: MemorySystem, sms: list[int], starts: dict[int, float] | None = None) -> dict[int, float]:
    """When each of the SMs has sent `WORK` cycles of its port's time, if they look again when they are told to."""
    waiting = {sm: (starts or {}).get(sm, 0.0) for sm in sms}
    begun: set[int] = set()
    ended: dict[int, float] = {}
    while waiting:
        sm = min(waiting, key=lambda s: waiting[s])
        now = waiting.pop(sm)
        if sm not in begun:
            begun.add(sm)
            waiting[sm] = send(memory.state, sm, WORK, now)
        elif (later := still_sending(memory.state, sm, WORK, now)) > now:
            waiting[sm] = later
        else:
            ended[sm] = now
    return ended


def shared(*limits: str) -> MemorySystem:
    return MemorySystem(load_gpu("h200", limits), tensors(64 * KIB))


def cpc(number: int) -> list[int]:
    return [sm for sm, c in enumerate(H200.sm.cpc_of_sm) if c == number]


def test_has_a_gpc_three_cpcs_of_two_or_three_tpcs() -> None:
    sm = H200.sm
    for gpc in range(sm.gpcs):
        of_gpc = [sm.cpc_of_sm[s] for s in range(sm.count) if sm.gpc_of_sm[s] == gpc]
        assert len(set(of_gpc)) == 3
        assert sorted(of_gpc.count(c) for c in set(of_gpc)) in ([4, 6, 6], [6, 6, 6])
    assert all(sm.cpc_of_sm[s] == sm.cpc_of_sm[s + 1] for s in range(0, sm.count, 2))


def test_is_an_sm_alone_as_fast_as_its_port() -> None:
    assert finish(shared(), [5]) == {5: pytest.approx(WORK)}


@pytest.mark.parametrize("width", (1, 2, 5))
def test_do_the_sms_of_a_cpc_share_its_port_evenly(width: int) -> None:
    sms = cpc(0)
    memory = shared(f"noc.cpc_uplink={width / len(sms)}", "noc.gpc_uplink=1.0", "noc.uplink=1.0")
    ended = finish(memory, sms)
    assert max(ended.values()) == pytest.approx(WORK * len(sms) / width, rel=0.02)
    assert min(ended.values()) > 0.95 * max(ended.values())


def test_do_those_that_are_left_send_faster() -> None:
    """Two SMs on a port as wide as one: the second starts when the first has half of its work done."""
    first, second = cpc(0)[:2]
    memory = shared(f"noc.cpc_uplink={1 / len(cpc(0))}", "noc.gpc_uplink=1.0", "noc.uplink=1.0")
    ended = finish(memory, [first, second], starts={second: WORK / 2})
    assert 2 * WORK <= ended[second] <= 2.5 * WORK, "the port is never idle, but that is seen when the end was due"
    assert WORK < ended[first] < ended[second]
    assert send(memory.state, second, WORK, ended[second]) == pytest.approx(ended[second] + WORK), "all of the port"


def test_are_sms_of_a_small_cpc_ahead_when_a_gpc_is_too_narrow() -> None:
    sms = [s for s in range(H200.sm.count) if H200.sm.gpc_of_sm[s] == 1]
    small = min((cpc(c) for c in {H200.sm.cpc_of_sm[s] for s in sms}), key=len)
    ended = finish(shared("noc.cpc_uplink=1.0", "noc.gpc_uplink=0.5", "noc.uplink=1.0"), sms)
    others = [ended[s] for s in sms if s not in small]
    assert max(ended[s] for s in small) < 0.85 * min(others)


def test_does_nobody_wait_where_all_ports_are_wide() -> None:
    memory = shared("noc.cpc_uplink=1.0", "noc.gpc_uplink=1.0", "noc.uplink=1.0")
    assert set(finish(memory, list(range(H200.sm.count))).values()) == {WORK}


def test_is_what_was_sent_accounted_for_once() -> None:
    memory = shared()
    finish(memory, list(range(H200.sm.count)))
    state = memory.values
    assert not state["send_left"].any() and not state["sending_sms"].any()
    assert not state["sending_cpcs"].any() and not state["sending_gpcs"].any()


def test_does_a_store_end_when_its_sectors_are_sent() -> None:
    memory = system()
    end = write_tile(memory.state, 0, 0, memory.tensors[0].base, 1, 32 * KIB, 32 * KIB, 0.0)
    assert end == pytest.approx(32 * KIB / memory.gpu.sm.write_port_bytes_per_clk)


def rows() -> list[dict[str, str]]:
    return list(read_rows(MEASURED))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['what']}, {row['set']}")
def test_do_sms_of_the_h200_send_as_fast_as_they_were_measured_to(row: dict[str, str]) -> None:
    """What an SM sends on average, in large and in small CPCs, as a share of what one sends alone."""
    sm = H200.sm
    gpcs = [[s for s in range(sm.count) if sm.gpc_of_sm[s] == g] for g in range(sm.gpcs)]
    of_gpcs = [[cpc(c) for c in dict.fromkeys(sm.cpc_of_sm[s] for s in gpc)] for gpc in gpcs]
    a, b, c = next(cpcs for cpcs in of_gpcs if len(cpcs[2]) == 4)
    sets = {
        "one SM": a[:1],
        "a TPC": a[:2],
        "two TPCs of a CPC": a[:4],
        "two TPCs of two CPCs": [*a[:2], *b[:2]],
        "a large CPC": a,
        "a small CPC": c,
        "two large CPCs": [*a, *b],
        "a GPC": [*a, *b, *c],
        "a TPC of every CPC": [s for cpcs in of_gpcs for sms in cpcs for s in sms[:2]],
        "a CPC of every GPC": [s for cpcs in of_gpcs for s in cpcs[0]],
        "all": list(range(sm.count)),
    }
    alone = float(next(r for r in rows() if r["what"] == row["what"] and r["set"] == "one SM")["of_an_sm"])
    ended = finish(shared(), sets[row["set"]])
    small = {s for cpcs in of_gpcs for sms in cpcs for s in sms if len(sms) == 4}
    for column, chosen in (
        ("of_an_sm_in_a_large_cpc", [s for s in ended if s not in small]),
        ("of_an_sm_in_a_small_cpc", [s for s in ended if s in small]),
    ):
        if chosen:
            rate = sum(WORK / ended[s] for s in chosen) / len(chosen)
            assert rate == pytest.approx(float(row[column]) / alone, rel=0.12), column
