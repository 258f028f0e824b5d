"""Counters of the launches of a benchmark as rows of a CSV, in the columns that `experiments.measurements` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernels_cupy.counters import count_launches
from kernels_cupy.errors import Unavailable
from kernels_cupy.microbench.bench import COUNTING_LIMIT_S

__all__ = ["METRICS", "counted_rows"]

METRICS = {
    "time_ns": "gpu__time_duration.sum",
    "sm_cycles_elapsed": "sm__cycles_elapsed.max",
    "sm_cycles_active_avg": "sm__cycles_active.avg",
    "l2_cycles_elapsed": "lts__cycles_elapsed.max",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_tex_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_tex_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "l2_tex_hit_sectors": "lts__t_sectors_srcunit_tex_lookup_hit.sum",
    "l2_tex_miss_sectors": "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "l2_fabric_sectors": "lts__t_sectors_srcunit_ltcfabric.sum",
    "sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "sm_write_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum",
}
"""Column → metric of Nsight Compute."""


def counted_rows(kernels: str, child: Sequence[str], names: Sequence[Sequence[object]]) -> Iterator[list[object]]:
    """`names` of the launches, in order, each followed by its counters.

    Args:
        kernels: ncu's choice of kernels by name.
        child: the module that launches them, and its arguments.

    Raises:
        Unavailable: no ncu, no permission, or other launches than named.
    """
    counted = count_launches(kernels, METRICS, child, COUNTING_LIMIT_S)
    if len(counted) != len(names):
        raise Unavailable(f"ncu measured {len(counted)} kernels where {len(names)} were launched")
    for name, row in zip(names, counted, strict=True):
        yield [*name, *(f"{row[field]:.0f}" if row[field] == row[field] else "" for field in METRICS)]
