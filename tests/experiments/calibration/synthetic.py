"""A folder of measurements as a machine of known figures would give them, and without noise."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

from kernels_cupy.microbench.l2_counters import METRICS

SMS = 32
GPC_OF_SM = [sm // 16 for sm in range(SMS)]
PARTITION_OF_SM = [sm // 2 % 2 for sm in range(SMS)]
ORDER = [*range(1, SMS), 0]
CLOCK_GHZ = 1.5
BUS_BITS, MEMORY_CLOCK_HZ = 2048, 2.5e9
L2_MIB = 24
DIRTY_CAP_MIB = 10
SLICES, L2_CLOCK_HZ = 30, 1.2e9
PEAK_TB_PER_S = 2 * MEMORY_CLOCK_HZ * BUS_BITS / 8 / 1e12  # 1.28
COUNTER_FILES = (
    "launch_counters.csv",
    "units.csv",
    "l2_capacity_reads.csv",
    "l2_writeback_and_merging.csv",
    "merging.csv",
)


def write_folder(folder: Path, capability: str = "9.0", partitions: int = 2) -> Path:
    """Everything, counters too; delete files for a card that permits less."""
    folder.mkdir(parents=True, exist_ok=True)
    _device(folder, capability)
    _placement(folder, partitions)
    _curves(folder)
    _rates(folder)
    _counters(folder)
    return folder


def _device(folder: Path, capability: str) -> None:
    _json(
        folder / "device.json",
        gpu="Synthetic",
        driver="1.2",
        cuda="13.0",
        date="2026-01-01",
        compute_capability=capability,
        sm_count=SMS,
        l2_bytes=L2_MIB << 20,
        memory_bytes=16 << 30,
        shared_bytes_per_sm=200 << 10,
        shared_bytes_per_cta=199 << 10,
        registers_per_sm=65536,
        threads_per_sm=2048,
        ctas_per_sm=24,
        memory_bus_bits=BUS_BITS,
        sm_clock_khz=int(CLOCK_GHZ * 1e6),
        memory_clock_khz=int(MEMORY_CLOCK_HZ / 1e3),
    )
    _json(folder / "launch.json", overhead_us=2.0, sm_clock_ghz=CLOCK_GHZ)


def _placement(folder: Path, partitions: int) -> None:
    far = 450.0 if partitions == 2 else 301.0
    _json(
        folder / "partitions.json",
        partition_of_sm=PARTITION_OF_SM,
        atomic_latency_cycles={"near": 300.0, "far": far},
        home_address_bits=[12, 14],
        addresses_explained=1.0,
        first_over_second_singular_value=8.0 if partitions == 2 else 1.1,
    )
    full = {"last_start_ns": [152.0] * 5, "tpc_lag_ns": 40.0}
    turnover = {
        "full_ctas_of_32_threads_in_8_waves": {"turnover_ns": 205.0},
        "full_ctas_in_8_waves": {"turnover_ns": 260.0},
        "full_ctas_of_1024_threads_in_8_waves": {"turnover_ns": 360.0},
    }
    small = {"last_run": {"sm": ORDER}}
    _json(folder / "cta_starts.json", one_small_cta_per_sm=small, one_full_cta_per_sm=full, **turnover)
    _json(folder / "gpcs.json", gpc_of_sm=GPC_OF_SM, sms_of_gpc=[16, 16], bytes_per_clk_of_gpc=[500.0, 504.0])


def _curves(folder: Path) -> None:
    latency = [("latency_shared", 0.001, 25), ("latency_l1", 0.015, 35), ("latency", 0.0625, 240), ("latency", 1, 250)]
    _table(folder / "latency.csv", ["curve", "x", "value"], [*latency, ("latency_flushed", 64, 600)])
    streams = [("read_fixed", 8, 4.0), ("read_fixed", 1024, 0.95 * PEAK_TB_PER_S), ("write", 1024, 0.8 * PEAK_TB_PER_S)]
    streams += [("sms_dram", 1, 0.0768), ("sms_dram", 32, 1.2), ("partition_dram", 16, 0.9), ("sm_write_l2", 1, 48.0)]
    _table(folder / "streams.csv", ["curve", "x", "value"], streams)
    columns = ["set", "sms", "ctas_per_sm", "threads", "depth", "bytes_per_clk_slowest", "sm_of_cta"]
    reads: list[tuple[object, ...]] = [("in order", 1, 1, 1024, 4, 61.0, ""), ("in order", 1, 2, 1024, 4, 64.0, "")]
    grids = ([3], [1, 3], [1, 2, 3, 4], [1, 2, 3, 4, 9, 11, 13, 15], ORDER)
    reads += [("launched", len(sms), 1, 1024, 4, 60.0, " ".join(map(str, sms))) for sms in grids]
    _table(folder / "sm_bandwidth.csv", columns, reads)
    columns = ["what", "set", "sms", "bytes_per_clk_of_all", "of_an_sm", "of_an_sm_in_a_small_cpc"]
    writes: list[tuple[object, ...]] = [  # GPCs of two CPCs of 6 SMs and one of 4
        ("write lines", "one SM", 1, 48.0, 48.0, ""),
        ("write lines", "a large CPC", 6, 240.0, 40.0, ""),
        ("write lines", "a small CPC", 4, 192.0, 48.0, 48.0),
        ("write lines", "a GPC", 16, 500.0, 36.0, 40.0),
        ("write lines", "a TPC of every CPC", 12, 576.0, 48.0, 48.0),
        ("write lines", "all", 32, 700.0, 25.0, 32.0),
        ("add to lines", "one SM", 1, 36.0, 36.0, ""),
        ("add to sectors", "one SM", 1, 20.0, 20.0, ""),
    ]
    _table(folder / "sm_writes.csv", columns, writes)
    _table(folder / "reductions.csv", ["kernel", "tb_per_s"], [("add_words", SLICES * L2_CLOCK_HZ * 20 / 1e12)])


def _rates(folder: Path) -> None:
    rows: list[tuple[object, ...]] = [
        ("mma", "fp16", 1228.0, "FLOP", 1.5),
        ("wgmma", "fp16", 2040.0, "FLOP", 1.5),
        ("wgmma", "fp8", 4090.0, "FLOP", 1.5),
        ("fma", "fp32", 240.0, "FLOP", 1.5),
        ("exp", "fp32", 15.98, "exponentials", 1.5),
        ("shared", "read", 126.0, "B", 1.5),
        ("sustained wgmma", "fp16", "", "", 1.3),
        ("sustained wgmma", "fp16", "", "", 1.2),
        ("sustained wgmma", "fp16", "", "", 1.2),
    ]
    _table(folder / "rates.csv", ["instruction", "precision", "per_clk_per_sm", "unit", "sm_clock_ghz"], rows)


def _counters(folder: Path) -> None:
    units = [("l2_slices", SLICES), ("gpcs", 2), ("lts_clock_hz", L2_CLOCK_HZ)]
    _table(folder / "units.csv", ["quantity", "value"], units)
    cycles = [("busy", 1, 128, 5000), ("empty", 1, 128, 2000), ("empty", 320, 128, 4000), ("empty", 1320, 128, 6500)]
    _table(folder / "launch_counters.csv", ["kernel", "ctas", "threads", "sm_cycles_elapsed"], cycles)
    steps = []
    for mib in (6, 8, 12, 16, 24):
        row = dict.fromkeys(METRICS, 0)
        row |= {"sm_cycles_elapsed": 9000 + mib, "sm_cycles_active_avg": 6000 + mib}
        row["dram_write_bytes"] = max(0, mib - DIRTY_CAP_MIB) << 20
        steps.append((f"write {mib} MiB after clean L2", *row.values()))
    _table(folder / "l2_writeback_and_merging.csv", ["step", *METRICS], steps)
    pair = [("same TPC", 2, delay, merged) for delay, merged in ((0, 2.0), (40, 2.0), (80, 1.0))]
    columns = ["case", "sms", "delay_cycles", "merged"]
    _table(folder / "merging.csv", columns, [*pair, ("far apart", 2, 0, 1.0), ("first 16", 16, 0, 3.99)])
    _table(folder / "l2_capacity_reads.csv", ["pattern", "mib", *METRICS], [])


def _json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values))


def _table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        file.write("# gpu: Synthetic\n")
        csv.writer(file).writerows([list(columns), *rows])
