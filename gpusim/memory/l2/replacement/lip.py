"""LRU insertion (Qureshi et al., ISCA 2007): a fill is next to go, only a hit makes it the most recent."""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_BOTTOM, HIT_TO_TOP, VICTIM_LAST, Replacement

LIP = Replacement("lip", HIT_TO_TOP, FILL_BOTTOM, VICTIM_LAST)
