"""What a replacement policy decides, as codes that the compiled lookup (`gpusim.memory.l2.ordered`) branches on.

A set is a row of lines, the most recent first. A policy says where a hit moves a line, where a fill enters the row, and
who leaves a full set.
"""

from __future__ import annotations

from dataclasses import dataclass

HIT_STAYS, HIT_TO_TOP = range(2)
FILL_TOP, FILL_BOTTOM, FILL_BIMODAL, FILL_LONG = range(4)
"""Most recent; next to go; next to go but for one in `BIMODAL_TOP`; behind lines that have been hit (ages)."""
VICTIM_LAST, VICTIM_ANY = range(2)

BIMODAL_TOP = 32
"""One in so many fills of a bimodal policy enters at the top (Qureshi et al., ISCA 2007)."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement policy.

    Attributes:
        name: as in `l2.replacement`.
        hit, fill, victim: its rules.
        ages: whether lines are grouped by re-reference prediction (`gpusim.memory.l2.ages`).
    """

    name: str
    hit: int
    fill: int
    victim: int
    ages: bool = False
