"""`gpusim algorithms`: what can be simulated, and how each algorithm can be scheduled."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from gpusim.cli.tables import table
from gpusim.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show one algorithm only")


def run(args: argparse.Namespace) -> int:
    from traces.algorithms import ALGORITHMS, algorithm

    try:
        chosen = list(ALGORITHMS.values()) if args.name is None else [algorithm(args.name)]
    except ValueError as error:
        raise UserError(str(error)) from None
    print("\n\n".join(_describe(module) for module in chosen))
    return 0


def _describe(algorithm: Any) -> str:
    """Name, summary and paper, tensors and kernels of a small call, schedule keys with defaults."""
    from traces.algorithms import default_shape
    from traces.problem import AttentionProblem

    problem = AttentionProblem.from_dict({"heads": 1, "seq": 256, "dim": 64, **default_shape(algorithm.name)})
    schedule = algorithm.default_schedule(problem, "mma_sync", 132)
    plan = algorithm.plan(problem, schedule)
    rows = [
        ("paper", algorithm.paper),
        ("tensors", ", ".join(tensor.name for tensor in plan.tensors)),
        ("kernels", ", ".join(launch.name for launch in plan.launches)),
        ("schedule", " ".join(f"{f.name}={getattr(algorithm.Schedule_(), f.name)}" for f in fields(schedule))),
    ]
    indented = [(f"  {label}", text) for label, text in rows]
    return f"{algorithm.name}: {algorithm.summary}\n{table(indented)}"
