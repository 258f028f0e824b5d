"""First in, first out: hits change nothing, so the order is that of arrival."""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_TOP, HIT_STAYS, VICTIM_LAST, Replacement

FIFO = Replacement("fifo", HIT_STAYS, FILL_TOP, VICTIM_LAST)
