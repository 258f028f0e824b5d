"""Random: any line of a full set may leave. The dice are the same in every run."""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_TOP, HIT_STAYS, VICTIM_ANY, Replacement

RANDOM = Replacement("random", HIT_STAYS, FILL_TOP, VICTIM_ANY)
