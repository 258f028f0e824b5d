"""A result for people: plain-text table, one-file HTML page, Perfetto trace.

All three read the plain dictionary that `gpusim simulate --json` writes (see docs/report.md), never the simulator's
own objects, so a stored file and a fresh run give the same report.
"""
