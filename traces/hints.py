"""Names of the cache hints of a load, apart from `traces.ops` so that GPU files can be read without NumPy."""

HINTS = ("normal", "evict_first", "evict_last", "no_allocate")
"""How long the L2 should keep what a load brings: as usual; leave first; leave last; not at all."""
