"""Static re-reference interval prediction, 2 bits, hit priority (Jaleel et al., ISCA 2010).

Lines are predicted to be used again soon (0) to late (3). A fill enters at 2, a hit makes it 0, a line at 3 leaves, and
when there is none, all age by one. Among equals the most recent is kept.
"""

from __future__ import annotations

from gpusim.memory.l2.replacement.rules import FILL_LONG, HIT_TO_TOP, VICTIM_LAST, Replacement

SRRIP = Replacement("srrip", HIT_TO_TOP, FILL_LONG, VICTIM_LAST, ages=True)
