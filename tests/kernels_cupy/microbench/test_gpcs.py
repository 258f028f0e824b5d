"""Are GPCs found on machines whose SMs are numbered in awkward ways?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest

from kernels_cupy.microbench.gpcs import Rate, group, result

ALONE, PORT = 100.0, 640.0


def machine(gpc_of: Sequence[int]) -> Rate:
    """SMs that read `ALONE`, or an equal share of what their GPC's port gives."""

    def rate(asked: Sequence[int], beside: Sequence[int]) -> float:
        active = [gpc_of[sm] for sm in (*asked, *beside)]
        return fmean(min(ALONE, PORT / active.count(gpc_of[sm])) for sm in asked)

    return rate


def renamed(gpc_of: dict[int, int]) -> list[list[int]]:
    """The SMs of each GPC."""
    return sorted(sorted(sm for sm in gpc_of if gpc_of[sm] == gpc) for gpc in set(gpc_of.values()))


def test_is_a_gpc_found_whose_sms_lie_scattered_in_the_order() -> None:
    # Three GPCs of 16 SMs; the order begins with a TPC of each, as on an H200.
    order = [42, 43, 44, 45, 46, 47, *range(14), *range(14, 28), *range(28, 42)]
    gpc_of = [0] * 14 + [1] * 14 + [2] * 14 + [0, 0, 1, 1, 2, 2]
    found = group(order, machine(gpc_of))
    assert renamed(found) == renamed(dict(enumerate(gpc_of)))
    assert found[42] == 0, "numbered by the first SM of the order"


def test_are_short_stretches_found_with_each_other() -> None:
    order = [*range(28, 36), *range(14), *range(14, 28)]
    gpc_of = [0] * 14 + [1] * 14 + [2] * 8
    assert renamed(group(order, machine(gpc_of))) == renamed(dict(enumerate(gpc_of)))


def test_is_an_sm_that_shares_nothing_said() -> None:
    order = [28, 29, *range(14), *range(14, 28)]
    gpc_of = [0] * 14 + [1] * 14 + [2] * 2
    found = group(order, machine(gpc_of))
    assert found[28] == found[29] == -1 and max(found.values()) == 1


def test_does_the_file_say_what_each_gpc_reads() -> None:
    order = [*range(14), *range(14, 28)]
    said = result(order, *[machine([0] * 14 + [1] * 14)] * 2)
    assert said["sms_of_gpc"] == [14, 14] and said["bytes_per_clk_of_gpc"] == pytest.approx([PORT, PORT], abs=0.1)
    assert said["bytes_per_clk_of_sm_alone"] == ALONE


def test_are_gpcs_found_that_ctas_are_handed_to_in_turns() -> None:
    tpcs = [gpc * 8 + turn for turn in range(8) for gpc in range(5)]
    order = [sm for tpc in tpcs for sm in (2 * tpc, 2 * tpc + 1)]
    gpc_of = [sm // 16 for sm in range(80)]
    assert renamed(group(order, machine(gpc_of))) == renamed(dict(enumerate(gpc_of)))


def test_are_gpcs_without_a_port_of_their_own_one() -> None:
    order = list(range(40))
    assert set(group(order, lambda asked, beside: ALONE).values()) == {-1}
