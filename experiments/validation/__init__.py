"""Simulated against measured, curve by curve: what `gpusim validate` runs."""
