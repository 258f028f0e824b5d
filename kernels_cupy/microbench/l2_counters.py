"""Benchmarks that run themselves under Nsight Compute: their command line, and counters of their launches as rows of a
CSV, in the columns that `experiments.measurements` reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kernels_cupy.counters import count_launches
from kernels_cupy.errors import Unavailable
from kernels_cupy.microbench.bench import COUNTING_LIMIT_S, write_table

__all__ = ["METRICS", "Child", "counting_main", "write_counted"]

Child = Sequence[str]
"""A module, and the arguments with which it launches what is counted."""

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


def counting_main(
    doc: str | None, name: str, output: str, launch_all: Callable[[], None], count: Callable[[Child, Path], None]
) -> None:
    """The command line of `kernels_cupy.microbench.NAME`, described by `doc`; it writes `output` unless told otherwise.

    Args:
        launch_all: what Nsight Compute watches.
        count: has ncu run the child and writes the file; Unavailable ends the program with one sentence.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default=output)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all()
        return
    try:
        count([f"kernels_cupy.microbench.{name}", "--launch"], Path(arguments.output))
    except Unavailable as error:
        sys.exit(f"{name}: {error}")


def write_counted(
    path: Path,
    facts: Mapping[str, str],
    columns: Sequence[str],
    kernels: str,
    child: Child,
    names: Sequence[Sequence[object]],
) -> None:
    """Count the child's launches and write a CSV: `columns` of names, then counters; arguments as of `counted_rows`."""
    rows = list(counted_rows(kernels, child, names))
    write_table(path, facts, (*columns, *METRICS), rows)
    print(f"{len(rows)} launches")


def counted_rows(kernels: str, child: Child, names: Sequence[Sequence[object]]) -> Iterator[list[object]]:
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
