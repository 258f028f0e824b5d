"""Least recently used: a hit makes a line the most recent, a fill is the most recent, the last one leaves."""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_TOP, HIT_TO_TOP, VICTIM_LAST, Replacement

LRU = Replacement("lru", HIT_TO_TOP, FILL_TOP, VICTIM_LAST)
