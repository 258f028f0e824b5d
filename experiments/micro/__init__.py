"""The measured micro-benchmarks as kernels for the simulator: the card and the machine run the same access patterns."""
