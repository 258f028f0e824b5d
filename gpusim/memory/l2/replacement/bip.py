"""Bimodal insertion (Qureshi et al., ISCA 2007): LRU insertion, but one fill in 32 is the most recent."""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_BIMODAL, HIT_TO_TOP, VICTIM_LAST, Replacement

BIP = Replacement("bip", HIT_TO_TOP, FILL_BIMODAL, VICTIM_LAST)
