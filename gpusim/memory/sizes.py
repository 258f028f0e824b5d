"""Units of the memory system."""

from __future__ import annotations

LINE_BYTES = 128
SECTOR_BYTES = 32
THROUGH_L1 = 4
"""Added to a load's hint (`gpusim.memory.l2.policies`) when it goes through the L1."""
