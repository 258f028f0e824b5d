"""Fit one figure of a GPU to curves, on the points that are not held out, and show what the held-out ones say.

    python -m experiments.validation.fit noc.gpc_port 600 620 636 660 --curves sms_l2
    python -m experiments.validation.fit l2.data_share 0.9 0.9333 0.9667 --curves dram_share

The value with the least mean error over the curves, each relative to its target, is the fit; every third point of a
curve (`HOLD_OUT`) has no part in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import fmean

from experiments.validation.curve import Curve
from experiments.validation.suite import run_suite
from experiments.validation.text import error_text
from gpusim.spec import load_gpu

__all__ = ["fit", "score"]


def score(curves: Sequence[Curve], held_out: bool) -> float:
    """Mean over the curves with a target of the mean error of some points, in units of the target."""
    parts = []
    for curve in curves:
        error = curve.mean_error(held_out)
        if curve.target is not None and error is not None:
            parts.append(error / curve.target)
    return fmean(parts)


def fit(gpu: str, key: str, values: Sequence[str], only: str) -> tuple[str, dict[str, list[Curve]]]:
    """The best of `values` for `key` by calibration error, and every value's curves."""
    curves = {value: run_suite(load_gpu(gpu, [f"{key}={value}"]), only, lambda share: None) for value in values}
    return min(values, key=lambda value: score(curves[value], False)), curves


def main() -> None:
    """Print a line per value and curve, then the fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key", help="a GPU key, as in --set")
    parser.add_argument("values", nargs="+")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--curves", default="", help="part of the curves' names")
    arguments = parser.parse_args()
    best, curves = fit(arguments.gpu, arguments.key, arguments.values, arguments.curves)
    for value, found in curves.items():
        for curve in found:
            errors = [error_text(curve, curve.mean_error(held_out)) for held_out in (False, True)]
            print(f"{arguments.key}={value:<8} {curve.name:28} calibration {errors[0]:>8}  held out {errors[1]:>8}")
        print(f"{arguments.key}={value:<8} in targets: {score(found, False):.3f}, held out {score(found, True):.3f}")
    sys.stdout.write(f"fit: {arguments.key} = {best}\n")


if __name__ == "__main__":
    main()
