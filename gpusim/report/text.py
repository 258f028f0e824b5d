"""Numbers as text, with one meaning each wherever a report shows them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["amount", "facts", "human_bytes", "megabytes", "percent", "plain", "short_shape", "times", "write_atomic"]

NOTHING = "–"


def megabytes(count: float | None, grouped: bool = False) -> str:
    """Bytes as a number of MB (1e6) with two decimals."""
    if count is None:
        return NOTHING
    return f"{count / 1e6:,.2f}" if grouped else f"{count / 1e6:.2f}"


def human_bytes(count: float) -> str:
    """Bytes with a decimal unit: `97.0 MB`, `4.39 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{_three(count / scale)} {unit}"
    return f"{count:.0f} B"


def amount(value: float | None, unit: str) -> str:
    """A quantity with a decimal prefix: `989 TFLOP/s`, `4.81 TB/s`."""
    if value is None:
        return NOTHING
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{_three(value / scale)} {prefix}{unit}"
    return f"{_three(value)} {unit}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(fraction: float | None) -> str:
    """A fraction as `93.9%`."""
    return NOTHING if fraction is None else f"{fraction * 100:.1f}%"


def times(value: float | None) -> str:
    """A ratio as `1.01x`."""
    return NOTHING if value is None else f"{value:.3f}x" if value < 10 else f"{value:.1f}x"


def plain(value: float | None, decimals: int = 2) -> str:
    """A number with fixed decimals."""
    return NOTHING if value is None else f"{value:.{decimals}f}"


def facts(values: Mapping[str, Any]) -> str:
    """`key=value` pairs on one line, without empty ones."""
    return " ".join(f"{key}={value}" for key, value in values.items() if value not in (None, "", {}, []))


def short_shape(problem: Mapping[str, Any]) -> str:
    """The problem in one phrase: `32 heads x 4096 x 128 fp16 causal`, all fields for an unknown kind of problem."""
    if not {"heads", "seq", "dim"} <= set(problem):
        return facts(problem)
    parts = [f"batch {problem['batch']}," if problem.get("batch", 1) != 1 else ""]
    heads, kv_heads = problem["heads"], problem.get("kv_heads") or problem["heads"]
    parts.append(f"{heads} head{'s' * (heads != 1)}" + (f" ({kv_heads} KV)" if kv_heads != heads else ""))
    seq, seq_kv = problem["seq"], problem.get("seq_kv") or problem["seq"]
    parts.append(f"× {seq}" + (f" × {seq_kv} KV" if seq_kv != seq else ""))
    parts += [f"× {problem['dim']}", str(problem.get("dtype", ""))]
    kv_dtype = problem.get("kv_dtype") or problem.get("dtype", "")
    parts.append(f"(KV {kv_dtype})" if kv_dtype != problem.get("dtype", "") else "")
    parts.append("causal" if problem.get("causal") else "")
    return " ".join(part for part in parts if part)


def write_atomic(text: str, path: str | os.PathLike[str]) -> None:
    """Write UTF-8 `text` to `path` all at once: readers see the old file or the new one, never a part."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
