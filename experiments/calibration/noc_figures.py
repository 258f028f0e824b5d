"""Figures of what lies between SMs and L2: shared ports, the fabric between partitions, and merging of reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import fmean, median

from experiments.calibration.figure import Figure, measured, significant
from experiments.calibration.folder import Measurements
from kernels_cupy.microbench.sm_writes import CPCS

__all__ = ["mean_window", "noc_figures", "partitions"]

PARTITIONS, MERGING, GPCS, WRITES = "partitions.json", "merging.csv", "gpcs.json", "sm_writes.csv"
LEAST_STRENGTH = 3.0
"""Two partitions show as one pattern in the latencies of atomics, so much stronger than the next."""
MERGES = 1.5
"""SM bytes per L2 byte from which on reads are taken to merge."""
PAIR = 2


def partitions(m: Measurements) -> int:
    """L2 partitions: two, if latencies of atomics fall into near and far; 0 where that was not measured."""
    found = m.json(PARTITIONS)
    if found is None:
        return 0
    latency = found["atomic_latency_cycles"]
    split = found["first_over_second_singular_value"] >= LEAST_STRENGTH and latency["far"] > latency["near"]
    return 2 if split else 1


def noc_figures(m: Measurements) -> Iterator[Figure]:
    """All of them that the folder has measurements of."""
    yield from gpc_port(m)
    yield from uplinks(m)
    if partitions(m) == 2:
        yield from fabric(m)
    yield from merging(m)


def gpc_port(m: Measurements) -> Iterator[Figure]:
    """What the SMs of a GPC read together."""
    gpcs = m.json(GPCS)
    if gpcs is not None and gpcs["bytes_per_clk_of_gpc"]:
        rate = median(gpcs["bytes_per_clk_of_gpc"])
        how = f"the SMs of a GPC together read that from the L2, median of {len(gpcs['sms_of_gpc'])} GPCs"
        yield measured("noc.gpc_port", f"{significant(rate, 3)}B/clk", how, GPCS)


def uplinks(m: Measurements) -> Iterator[Figure]:
    """What SMs send to the L2 alone, and which shares of it those of a CPC, of a GPC and all of them can send together.

    Where a GPC's CPCs are unequal, SMs of the small one show how wide the ports above are, as the CPCs get equal shares
    until it is done; else the slowest SM of all does.
    """
    rows = {(row["what"], row["set"]): row for row in m.rows(WRITES)}
    if ("write lines", "all") not in rows:
        return
    alone = {what: float(rows[what, "one SM"]["of_an_sm"]) for what, name in rows if name == "one SM"}
    for what, key in (("add to lines", "sm.reduce_port"), ("add to sectors", "sm.fragment_port")):
        if what in alone:
            how = f"one SM alone adds {alone[what]:.3g} B per clock ({what})"
            yield measured(key, f"{significant(alone[what], 3)}B/clk", how, WRITES)
    of = {name: row for (what, name), row in rows.items() if what == "write lines"}
    large, small = int(of["a large CPC"]["sms"]), int(of["a small CPC"]["sms"])
    gpc, every = int(of["a GPC"]["sms"]), int(of["all"]["sms"])
    gpcs = int(of["a TPC of every CPC"]["sms"]) // (2 * CPCS)

    def width(name: str, cpcs: int) -> float:
        """SM ports that so many CPCs share in this set."""
        if small < large:
            return float(of[name]["of_an_sm_in_a_small_cpc"]) / alone["write lines"] * small * cpcs
        return float(of[name]["bytes_per_clk_of_all"]) / alone["write lines"]

    ports = {
        "noc.cpc_uplink": (float(of["a large CPC"]["bytes_per_clk_of_all"]) / alone["write lines"], large, "a CPC"),
        "noc.gpc_uplink": (width("a GPC", CPCS), every / gpcs if small < large else gpc, "a GPC"),
        "noc.uplink": (width("all", CPCS * gpcs), every, "the L2"),
    }
    for key, (ports_wide, sms, who) in ports.items():
        how = f"{who} takes what {ports_wide:.3g} SMs send alone"
        yield measured(key, significant(min(1.0, ports_wide / sms), 2), how, WRITES)


def fabric(m: Measurements) -> Iterator[Figure]:
    """Bandwidth and latency of crossing from one partition to the other."""
    one_side = m.curves.get("partition_dram", {})
    if one_side:
        rate = max(one_side.values())
        how = f"the SMs of one partition read {rate:.3g} TB/s from DRAM, half of it across the fabric, one way"
        yield measured("noc.fabric_bandwidth", f"{significant(rate, 3)}TB/s", how, "streams.csv")
    latency = (m.json(PARTITIONS) or {})["atomic_latency_cycles"]
    how = f"atomics at a far home take {latency['far']:.0f} cycles, at a near one {latency['near']:.0f}"
    yield measured("noc.fabric_latency", significant(latency["far"] - latency["near"], 3), how, PARTITIONS)


def merging(m: Measurements) -> Iterator[Figure]:
    """Whether SMs' reads of a line become one, how many at most, and how far apart in time."""
    rows = m.rows(MERGING)
    if not rows:
        return
    most = max(float(row["merged"]) for row in rows)
    how = f"SMs that copy the same tiles together read {most:.2f} times what they ask of the L2"
    yield measured("noc.coalescer", "merge" if most > MERGES else "none", how, MERGING)
    if most <= MERGES:
        return
    yield measured("noc.merge_width", round(most), how, MERGING)
    pairs: dict[str, dict[float, float]] = {}
    for row in rows:
        if int(row["sms"]) == PAIR:
            pairs.setdefault(row["case"], {})[float(row["delay_cycles"])] = float(row["merged"])
    merged = [shares for shares in pairs.values() if shares.get(0, 0.0) > MERGES and len(shares) > 1]
    if merged:
        delays = sorted(merged[0])
        # Of two requests that become one, the L2 sees one: merged = 2 / (2 - share).
        shares = {x: fmean(2 - 2 / max(1.0, pair[x]) for pair in merged) for x in delays}
        listed = ", ".join(f"{shares[x]:.0%} at {x:.0f}" for x in delays)
        how = f"share of requests that merge by cycles between two SMs of a merge group: {listed}"
        yield measured("noc.merge_window", significant(mean_window(shares), 2), how, MERGING)


def mean_window(shares: Mapping[float, float]) -> float:
    """Mean over requests of how far apart they may be, from the share that merges at each delay (the area below)."""
    delays = sorted(shares)
    return sum((b - a) * (shares[a] + shares[b]) / 2 for a, b in pairwise(delays))
