"""What is counted, under the names of Nsight Compute's metrics.

Counts are sectors of 32 bytes, per tensor; `gpusim.result` turns them into bytes.
"""

from __future__ import annotations

from enum import IntEnum


class C(IntEnum):
    """Index of each counter in the counter array."""

    SM_READ = 0
    """Sectors delivered to SMs (l1tex__m_xbar2l1tex_read_bytes / 32)."""
    SM_WRITE = 1
    """Sectors sent by SMs (l1tex__m_l1tex2xbar_write_bytes / 32)."""
    L2_READ = 2
    """Read sectors that reach an L2 slice, after merging (lts__t_sectors_srcunit_tex_op_read)."""
    L2_WRITE = 3
    """Write sectors that reach an L2 slice (lts__t_sectors_srcunit_tex_op_write), and sectors to be added to what is
    there, which Nsight Compute counts apart (…_op_red)."""
    L2_HIT = 4
    """Of both, sectors found in the SM's own partition; writes always count, reductions where the line's home has what
    they add to (lts__t_sectors_srcunit_tex_lookup_hit)."""
    L2_MISS = 5
    """Read sectors not found there, and reductions not at home (lts__t_sectors_srcunit_tex_lookup_miss)."""
    FABRIC_READ = 6
    """Read sectors asked of the other partition (part of lts__t_sectors_srcunit_ltcfabric)."""
    FABRIC_WRITE = 7
    """Write sectors sent to the other partition (the other part)."""
    DRAM_READ = 8
    """Sectors read from DRAM (dram__bytes_read / 32)."""
    DRAM_WRITE = 9
    """Sectors written to DRAM (dram__bytes_write / 32)."""
    SHARED_READ = 10
    """32-byte units read from shared memory (operands of matrix products, row exchange)."""
    SHARED_WRITE = 11
    """32-byte units written to shared memory (landing tiles, row exchange)."""
    FAR_HIT = 12
    """Read sectors missing near but found in the line's home partition."""
    L1_HIT = 13
    """Sectors that plain loads found in their SM's L1."""
    L1_MISS = 14
    """Sectors that plain loads did not find there."""
    MSC_HIT = 15
    """Read sectors missing in the L2 but found in the memory-side cache."""
    MSC_MISS = 16
    """Read sectors found in neither."""
    L2_REDUCE = 17
    """Of L2_WRITE, sectors of reductions (lts__t_sectors_srcunit_tex_op_red)."""


COUNTERS = tuple(C)
LEVELS = ("dram_read", "dram_write", "fabric", "l2_read", "l2_write")
"""Levels of the binned timeline, in array order."""
