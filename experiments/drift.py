"""The drift gate: simulated counters of small runs may not move by more than 0.5 % unnoticed.

python -m experiments.drift            # which counters moved; status 1 if any did
python -m experiments.drift --accept   # store the new ones

What is stored is `experiments/simulated/<gpu>.csv`, of which these runs are a part. Whether counters are *right* is
another question: `python -m experiments.accuracy`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from experiments.accuracy.cases import Case, drift_cases, fast_cases
from experiments.accuracy.quantities import QUANTITIES
from experiments.accuracy.simulated import Kernel, Stored, read_stored, simulate_case, write_stored

__all__ = ["ACCEPT", "TOLERANCE", "gate_cases", "main", "moved"]

TOLERANCE = 0.005
LEAST_BYTES = 64 * 1024
"""Counters below this may move by this share of it instead: a few sectors are no drift."""
ACCEPT = "python -m experiments.drift --accept"
"""The command that makes new counters the stored ones."""


def gate_cases() -> list[Case]:
    """Runs that take a second or so each: measured ones, and every algorithm once."""
    return [*fast_cases(), *drift_cases()]


def moved(case: Case, kernels: Sequence[Kernel], stored: Stored) -> list[str]:
    """A line for every counter that is not what is stored."""
    before = stored.get((case.suite, case.label), ())
    if [k.name for k in before] != [k.name for k in kernels]:
        return [f"{case.label}: kernels {[k.name for k in before]} are stored, {[k.name for k in kernels]} simulated"]
    lines = []
    for old, new in zip(before, kernels, strict=True):
        for quantity in QUANTITIES:
            was, now = old.values[quantity.field], new.values[quantity.field]
            least = LEAST_BYTES if quantity.field.endswith("_bytes") else 0.0
            if abs(now - was) > TOLERANCE * max(abs(was), least):
                change = f"{(now / was - 1) * 100:+.2f} %" if was else "from nothing"
                lines.append(f"{case.label} {new.name} {quantity.field}: {was:.6g} → {now:.6g} ({change})")
    return lines


def simulate_all(cases: Iterable[Case]) -> list[tuple[Case, tuple[Kernel, ...]]]:
    """Each case with its kernels."""
    return [(case, simulate_case(case)) for case in cases]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.drift", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--accept", action="store_true", help="store the new counters")
    options = parser.parse_args(arguments)
    stored = read_stored()
    simulated = simulate_all(gate_cases())
    lines = [line for case, kernels in simulated for line in moved(case, kernels, stored)]
    print("\n".join(lines) or "no counter has moved")
    if options.accept:
        write_stored(stored | {(case.suite, case.label): kernels for case, kernels in simulated})
        print("stored; python -m experiments.accuracy --stored brings the published tables up to date")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
