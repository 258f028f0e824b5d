"""Check the tiles given to measured PyTorch kernels: measured bytes over bytes counted from the mapped programs.

python -m experiments.torch_tiles
"""

from __future__ import annotations

import sys

from experiments.measurements import attention_calls
from experiments.port_bytes import port_bytes
from experiments.torch_kernels import map_call

__all__ = ["main"]


def main() -> int:
    """Print one line per kernel; returns the exit status."""
    print(f"{'':48} {'SM read':>9} {'SM write':>9} {'L2 read':>9}   measured / counted (L2: if nothing merged)")
    for call in attention_calls("h200", "warm"):
        mapped = map_call(call)
        if mapped is None:
            continue
        for measured, launch in zip(call.kernels, mapped.plan().launches, strict=True):
            count = port_bytes(launch)
            ratios = (
                measured.sm_read_bytes / count.sm_read,
                measured.sm_write_bytes / count.sm_write,
                measured.l2_read_bytes / count.l2_read_unmerged,
            )
            print(
                f"{f'{call.algorithm} {call.config} {launch.name}':48}" + "".join(f" {ratio:9.4f}" for ratio in ratios)
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
