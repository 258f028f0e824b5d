"""What the driver says of the card, and the SM clock that a spinning kernel finds.

python -m kernels_cupy.microbench.device -o device.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from kernels_cupy.microbench.bench import CLOCK, Bench
from kernels_cupy.provenance import provenance

PROPERTIES = {
    "sm_count": "multiProcessorCount",
    "l2_bytes": "l2CacheSize",
    "memory_bytes": "totalGlobalMem",
    "shared_bytes_per_sm": "sharedMemPerMultiprocessor",
    "shared_bytes_per_cta": "sharedMemPerBlockOptin",
    "registers_per_sm": "regsPerMultiprocessor",
    "threads_per_sm": "maxThreadsPerMultiProcessor",
    "memory_bus_bits": "memoryBusWidth",
}
"""Field → property of the CUDA runtime."""
ATTRIBUTES = {
    "sm_clock_khz": "ClockRate",
    "memory_clock_khz": "MemoryClockRate",
    "ctas_per_sm": "MaxBlocksPerMultiprocessor",
}
"""Field → attribute of the device."""


def card() -> str:
    """A name of the card at hand that says nothing but whether two measurements are of the same one."""
    import cupy

    identity = bytes(cupy.cuda.runtime.getDeviceProperties(0)["uuid"])
    return hashlib.sha256(identity).hexdigest()[:12]


def measure() -> dict[str, Any]:
    """Properties, and the SM clock in GHz while one SM spins."""
    bench = Bench(CLOCK)
    properties = bench.cupy.cuda.runtime.getDeviceProperties(0)
    attributes = bench.cupy.cuda.Device().attributes
    bench.sm_clock_ghz()  # the clock rises with work
    return {
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "card": card(),
        **{field: int(properties[name]) for field, name in PROPERTIES.items()},
        **{field: int(attributes[name]) for field, name in ATTRIBUTES.items() if name in attributes},
        "spinning_sm_clock_ghz": round(max(bench.sm_clock_ghz() for _ in range(20)), 4),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="device.json")
    output = parser.parse_args().output
    result = {**provenance(CLOCK, Path(__file__)), **measure()}
    Path(output).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
