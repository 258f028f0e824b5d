"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), numeric: Sequence[int] = ()) -> str:
    """`rows` in aligned columns, two spaces apart; the columns in `numeric` are right-aligned.

    >>> print(table([["h200", "132"], ["a100", "108"]], header=["GPU", "SMs"], numeric=[1]))
    GPU   SMs
    h200  132
    a100  108
    """
    lines = [header, *rows] if header else list(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
