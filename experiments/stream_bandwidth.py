"""Streaming read, write and copy of a large buffer by every SM, straight on the memory system: what HBM lets through.

python -m experiments.stream_bandwidth
python -m experiments.stream_bandwidth --gpu a100-80gb-sxm --mib 512 --set hbm.refresh=all_bank

Each SM works on tiles of 16 KiB in grid-stride order and keeps a few in flight, as a bandwidth test's kernel does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpusim.counters import C
from gpusim.jit import njit
from gpusim.memory.access import read_tile, write_tile
from gpusim.memory.state import MemorySystem
from gpusim.spec import GpuSpec, load_gpu
from traces.dtypes import DTYPES
from traces.tensor import TensorTable

__all__ = ["KINDS", "main", "stream_bandwidth"]

KINDS = ("read", "write", "copy")
MEASURED_H200 = {"read": "4.3 to 4.6", "write": "4.06", "copy": "4.08"}
"""TB/s, experiments/measured/h200/bandwidth_latency.md."""
TILE_BYTES = 16384
WORKERS_PER_SM = 8
"""Tiles that an SM has in flight at most (its own limit on outstanding reads comes on top)."""
DRAM_READ, DRAM_WRITE = int(C.DRAM_READ), int(C.DRAM_WRITE)


@njit
def _stream(
    m: Any, sms: int, workers: int, source: int, target: int, tiles: int, reading: bool, writing: bool
) -> float:
    """Move `tiles` tiles from `source` to `target`, each by the worker free first; returns when all are done."""
    free = np.zeros(sms * workers)
    for w in range(len(free)):
        free[w] = 7.0 * (w % sms) + 101.0 * (w // sms)
    writes = np.full(len(free), -1)  # tile that the worker has read and not written yet
    end = 0.0
    issued, done = 0, 0
    while done < tiles:
        w = int(np.argmin(free))
        now = free[w]
        sm = w % sms
        if writes[w] >= 0:
            t = write_tile(m, sm, 1, target + writes[w] * 16384, 1, 16384, 16384, now)
            writes[w] = -1
            done += 1
        elif issued == tiles:
            free[w] = np.inf
            continue
        else:
            tile = issued
            issued += 1
            t = now
            if reading:
                t = read_tile(m, sm, 0, source + tile * 16384, 1, 16384, 16384, 0, 1, now)
            if writing:
                writes[w] = tile
            else:
                done += 1
        free[w] = t
        end = max(end, t)
    return end


def stream_bandwidth(gpu: GpuSpec, kind: str, mib: int = 1024, workers: int = WORKERS_PER_SM) -> tuple[float, float]:
    """(TB/s of tiles moved, bytes that HBM moved over the bytes of the tiles); a copy counts both directions."""
    table = TensorTable()
    for name in ("source", "target"):
        table.add(name, (1, 1, 1, mib << 19), DTYPES["fp16"])
    memory = MemorySystem(gpu, table.tensors)
    source, target = table.tensors
    reading, writing = kind in ("read", "copy"), kind in ("write", "copy")
    tiles = source.size_bytes // TILE_BYTES
    end = _stream(memory.state, gpu.sm.count, workers, source.base, target.base, tiles, reading, writing)
    moved = source.size_bytes * (reading + writing)
    dram = 32 * int(memory.values["counters"][:, [DRAM_READ, DRAM_WRITE]].sum())
    return moved / (end / gpu.sm.clock_hz) / 1e12, dram / moved


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.stream_bandwidth", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--gpu", default="h200", help="GPU preset or file")
    parser.add_argument("--mib", type=int, default=1024, help="buffer, MiB")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value")
    options = parser.parse_args(arguments)
    gpu = load_gpu(options.gpu, options.overrides)
    peak = gpu.hbm.bandwidth_bytes_per_s / 1e12
    print(f"{gpu.name}: peak {peak:.2f} TB/s, {options.mib} MiB")
    for kind in KINDS:
        rate, share = stream_bandwidth(gpu, kind, options.mib)
        measured = f"   measured {MEASURED_H200[kind]}" if gpu.name == "h200" else ""
        print(f"{kind:6} {rate:5.2f} TB/s {100 * rate / peak:5.1f} %   HBM bytes / tile bytes {share:.2f}{measured}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
