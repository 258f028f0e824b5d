"""Attention kernels, simulated against measured: what `gpusim validate --suite torch` and `--suite own` run."""
