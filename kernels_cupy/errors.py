"""What can stand in the way of running a kernel, apart from bad input (a ValueError)."""

from __future__ import annotations


class Unavailable(RuntimeError):
    """The machine lacks something: a GPU, CuPy, the CUDA headers, Nsight Compute. One sentence, with how to get it."""


class CompileError(RuntimeError):
    """A kernel does not compile: one sentence, then the compiler's log."""
