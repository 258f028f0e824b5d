"""Request streams through the HBM controller of `gpusim.memory.hbm`, beside what Ramulator 2.1 says.

python -m experiments.hbm_streams
python -m experiments.hbm_streams --match bgi1pc --requests 40000

Generators and mappings are those of `experiments/measured/ramulator/README.md`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusim.memory.hbm.mapping import Organisation, map_addresses, new_mapping
from gpusim.memory.hbm.queues import new_requests
from gpusim.memory.hbm.rules import Rules, in_ticks
from gpusim.memory.hbm.scheduler import ALL_BANK, NONE, Controller, row_hit_rate, run_stream
from gpusim.memory.hbm.timing import new_banks
from gpusim.spec.hbm import HbmTiming

__all__ = ["Oracle", "Outcome", "main", "oracle", "replay", "stream"]

ORACLE = Path(__file__).parent / "measured" / "ramulator" / "oracle.csv"
CLOCK_NS = 0.625
ACCESS_BYTES = 32
ROWS = 16384
VARIANTS = ("_norefresh", "_frfcfsrowhit")
LOW_LOAD = "_lowload400"

Addresses = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Oracle:
    """A row of the oracle: `pattern` with its mapping, what was served in how many clocks, and how."""

    pattern: str
    reads: int
    writes: int
    cycles: int
    bandwidth_percent: float
    row_hit_rate: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What our model says of a stream: percent of the channel's peak, share of row hits, mean read latency (clocks)."""

    bandwidth_percent: float
    row_hit_rate: float
    read_latency: float
    seconds: float


def oracle() -> list[Oracle]:
    """Every row of the oracle, in file order."""
    with ORACLE.open(newline="") as file:
        return [
            Oracle(
                row["pattern"],
                int(row["reads"]),
                int(row["writes"]),
                int(row["cycles"]),
                float(row["bandwidth_pct_of_peak"]),
                float(row["row_hit_rate"]),
            )
            for row in csv.DictReader(file)
        ]


def requests_of(pattern: str) -> int:
    """Requests in the oracle's stream of a pattern."""
    if LOW_LOAD in pattern:
        return 4000
    return 40000 if pattern.startswith("stride_samebank_row") else 200000


def stream(name: str, capacity: int, count: int) -> Addresses:
    """(byte addresses, 1 where it is a write) of the named stream."""
    i = np.arange(count, dtype=np.int64)
    none = np.zeros(count, np.int64)
    block, within = i // 128, 32 * (i % 128)
    if name.startswith("streams16_"):
        label = name.removeprefix("streams16_")
        grain = {"32B": 32, "128B": 128, "1KiB": 1024, "4KiB": 4096, "128B_bankstagger": 128}[label]
        k = grain // 32
        t = i // k
        address = (t % 16) * (capacity // 16) + (t // 16) * grain + 32 * (i % k)
        return (address + ((t % 16) % 4) * (capacity >> 16) if label.endswith("stagger") else address), none
    random = np.random.default_rng(12345)
    if name == "seq_read":
        return 32 * i, none
    if name == "seq_write":
        return 32 * i, none + 1
    if name == "rw_copy_4k":
        return (block // 2) * 4096 + within + (block % 2) * (capacity // 2), block % 2
    if name == "rw_alt_4k":
        return 32 * i, block % 2
    if name == "random_read":
        return 32 * random.integers(0, capacity // 32, count), none
    if name == "random_rw50":
        address = 32 * random.integers(0, capacity // 32, count)
        return address, (random.random(count) < 0.5).astype(np.int64)
    if name == "stride_1KiB":
        return 1024 * i % capacity, none
    if name == "stride_samebank_row":
        return i * (capacity >> 14) % capacity, none
    raise ValueError(f"no stream is called {name}")


def ramulator_rules() -> Rules:
    """HBM3_6400 of Ramulator 2.1 in ticks, from the table in its README."""
    clocks = {
        "rcd_read": 31, "rcd_write": 15, "rp": 26, "ras": 45, "rc": 72, "cl": 20, "cwl": 10, "ccd_s": 2, "ccd_l": 4,
        "rrd_s": 4, "rrd_l": 5, "faw": 24, "wr": 33, "wtr_s": 7, "wtr_l": 10, "rtp": 9, "rtw": 20,
        "rfc_ab": 416, "rfc_pb": 320, "refi": 6240,
    }  # fmt: skip
    return in_ticks(HbmTiming(**{f"{name}_ns": CLOCK_NS * n for name, n in clocks.items()}), CLOCK_NS)


def replay(pattern: str, count: int | None = None) -> Outcome:
    """Run the stream of an oracle row (`seq_read_norefresh@bgi1pc`), or its first `count` requests."""
    name, _, mapping = pattern.partition("@")
    refresh = NONE if "_norefresh" in name else ALL_BANK
    spacing = 400 if LOW_LOAD in name else 0
    for suffix in (*VARIANTS, LOW_LOAD):
        name = name.removesuffix(suffix)
    pcs = 2 if mapping.endswith("2pc") else 1
    total = min(count or requests_of(pattern), requests_of(pattern))
    organisation = Organisation(pcs, 4, 4, 1024, ACCESS_BYTES)
    capacity = pcs * organisation.banks * ROWS * organisation.row_bytes
    addresses, writes = stream(name, capacity, total)
    bank, row = map_addresses(new_mapping(mapping, organisation), addresses)
    requests = new_requests(bank, row, writes, spacing * np.arange(total))
    began = time.perf_counter()
    ticks, _ = run_stream(new_banks(pcs, 4, 4), ramulator_rules(), requests, Controller(refresh=refresh))
    seconds = time.perf_counter() - began
    served = requests.served >= 0
    clocks = ticks / 2
    reads = served & (requests.write == 0)
    wait = (requests.served - requests.accepted)[reads].mean() / 2 + 22 if reads.any() else 0.0
    share = served.sum() * ACCESS_BYTES / (clocks * CLOCK_NS) / (25.6 * pcs)
    return Outcome(100 * float(share), row_hit_rate(requests), float(wait), seconds)


def report(rows: Sequence[Oracle], count: int | None) -> list[tuple[str, float, float]]:
    """Print the comparison; returns (pattern, bandwidth error in percent, row-hit error in points)."""
    found: list[tuple[str, float, float]] = []
    print(f"{'':36} |   bandwidth, % of peak    |      row hits, %         |")
    print(f"{'pattern':36} | oracle   ours   error %   | oracle   ours   points   | seconds")
    for row in rows:
        ours = replay(row.pattern, count)
        error = 100 * (ours.bandwidth_percent / row.bandwidth_percent - 1)
        points = 100 * (ours.row_hit_rate - row.row_hit_rate)
        print(
            f"{row.pattern:36} | {row.bandwidth_percent:6.2f} {ours.bandwidth_percent:6.2f} {error:+7.1f}     "
            f"| {100 * row.row_hit_rate:6.2f} {100 * ours.row_hit_rate:6.2f} {points:+7.1f}    | {ours.seconds:6.2f}"
        )
        found.append((row.pattern, error, points))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.hbm_streams", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--match", default="", help="only patterns that contain this text")
    parser.add_argument("--requests", type=int, help="only the first so many requests of each stream")
    options = parser.parse_args(arguments)
    rows = [row for row in oracle() if options.match in row.pattern]
    found = report(rows, options.requests)
    for mapping in ("bgi1pc", "bgi2pc", "default2pc"):
        errors: Any = [(abs(e), abs(p)) for name, e, p in found if name.endswith(mapping)]
        if errors:
            bandwidth, hits = zip(*errors, strict=True)
            print(f"{mapping:12} worst: bandwidth {max(bandwidth):.1f} %, row hits {max(hits):.1f} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
