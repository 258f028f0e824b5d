"""Numba's `njit` with an on-disk cache that notices every change of the compiled sources.

Numba checks only the file of the function itself, not of the functions it calls; so the cache lives in a folder named
after a hash of all compiled modules, and a stale one is simply never looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from traces.user_cache import user_cache_folder

F = TypeVar("F", bound=Callable[..., Any])
COMPILED_PACKAGES = ("memory", "sm")


@cache
def cache_folder() -> Path:
    """Where compiled functions are kept: `$GPUSIM_CACHE`, else `~/.cache/gpusim`, else a temporary folder."""
    package = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for name in COMPILED_PACKAGES:
        for source in sorted((package / name).rglob("*.py")):
            digest.update(source.read_bytes())
    digest.update((package / "counters.py").read_bytes())  # its numbers are compiled in
    return user_cache_folder(f"numba-{digest.hexdigest()[:16]}")


def njit(function: F) -> F:
    """Compile `function` on first use and keep the result on disk."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
    try:
        compiled: Any = numba.njit(cache=True)(function)
    finally:
        config.CACHE_DIR = before
    return cast(F, compiled)
