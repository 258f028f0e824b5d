"""The read coalescer between SMs and L2: reads of one line by SMs of a merge group, close in time, become one.

Each group has a table with one open request per entry; a line's entry is found by its low bits. A request stays open
while the L2 works on it: for the window after a hit, and for as long as the miss and the queues before it take on top.
`noc.coalescer = "none"` is a width of 1.
"""

from __future__ import annotations

from typing import Any

from gpusim.jit import njit

MERGE_SLOTS = 1 << 11
"""Entries of a group's table; far more than requests that can be in flight."""


@njit
def entry_of(m: Any, sm: int, line: int) -> int:
    """The table entry that a read of `line` by SM `sm` uses."""
    return m.merge_group_of_sm[sm] * MERGE_SLOTS + (line & (MERGE_SLOTS - 1))


@njit
def may_join(m: Any, entry: int, line: int, mask: int, issue: float) -> bool:
    """Whether the entry's open request brings sectors `mask` of `line` and takes another SM, at `issue`."""
    return (
        m.merge_line[entry] == line
        and m.merge_mask[entry] & mask == mask
        and m.merge_count[entry] < m.merge_width
        and m.merge_start[entry] - m.merge_window <= issue <= m.merge_ready[entry] - m.l2_latency + m.merge_window
    )


@njit
def open_request(m: Any, entry: int, line: int, mask: int, issue: float, ready: float) -> None:
    """Replace the entry's request by a new one."""
    m.merge_line[entry] = line
    m.merge_mask[entry] = mask
    m.merge_count[entry] = 1
    m.merge_start[entry] = issue
    m.merge_ready[entry] = ready
