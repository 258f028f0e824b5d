"""The L2: tag arrays kept in order of recency, and the policies that an architect can swap (docs/l2.md).

`policies` names them all and imports nothing compiled, so that GPU files can be checked without Numba.
"""
