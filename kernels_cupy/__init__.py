"""CUDA kernels in CuPy, launched and measured on real hardware. Needs only NumPy, CuPy and the standard library."""
