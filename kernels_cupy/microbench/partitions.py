"""Which L2 partition each SM is attached to, and which partition is the home of each address.

python -m kernels_cupy.microbench.partitions -o partitions.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.provenance import provenance

SOURCE = Path(__file__).with_suffix(".cu")
PAGE_BYTES = 2 << 20
GRANULE_BYTES = 4096


def measure(buffer_bytes: int = 64 << 20, addresses: int = 4096, repeats: int = 3) -> NDArray[np.uint16]:
    """Best latency in cycles of atomics, [SM, address]; addresses are `GRANULE_BYTES` apart."""
    import cupy

    kernel = cupy.RawModule(code=SOURCE.read_text()).get_function("atomic_latency")
    sms = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
    data = cupy.zeros(buffer_bytes // 4, cupy.uint32)
    rows = []
    for sm in range(sms):
        best = cupy.zeros(addresses, cupy.uint16)
        arguments = (data, addresses, GRANULE_BYTES // 4, sm, repeats, best)
        kernel((2 * sms,), (32,), tuple(np.int32(a) if isinstance(a, int) else a for a in arguments))
        rows.append(best.get())
    return np.array(rows)


def analyse(latency: NDArray[np.uint16]) -> dict[str, Any]:
    """Partitions of SMs, near and far latency, and the home of addresses as a parity of address bits.

    The centred latency matrix of a two-partition L2 has one dominant singular vector, whose signs are the partitions.
    """
    x = latency.astype(float)
    centred = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
    left, strength, right = np.linalg.svd(centred, full_matrices=False)
    sm, home = (left[:, 0] > 0).astype(int), (right[0] > 0).astype(int)
    same = sm[:, None] == home[None, :]
    if x[same].mean() > x[~same].mean():
        home = 1 - home
        same = ~same
    per_page = PAGE_BYTES // GRANULE_BYTES
    pages = home[: len(home) // per_page * per_page].reshape(-1, per_page)
    relative = pages ^ pages[:, :1]
    bits = [bit for bit in range(per_page.bit_length() - 1) if relative[0, 1 << bit]]
    granule = np.arange(per_page)
    parity = sum((granule >> bit) & 1 for bit in bits) % 2
    return {
        "partition_of_sm": sm.tolist(),
        "atomic_latency_cycles": {"near": float(np.median(x[same])), "far": float(np.median(x[~same]))},
        "home_address_bits": [bit + GRANULE_BYTES.bit_length() - 1 for bit in bits],
        "addresses_explained": float(np.mean(relative == parity)),
        "first_over_second_singular_value": float(strength[0] / strength[1]),
    }


def main() -> None:
    """Measure, analyse and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="partitions.json")
    output = parser.parse_args().output
    result = {**provenance(SOURCE), **analyse(measure())}
    Path(output).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "partition_of_sm"}, indent=1))


if __name__ == "__main__":
    main()
