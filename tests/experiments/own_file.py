"""A file of own measurements made of simulated numbers, for tests that need one before, or without, the real one."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from experiments.accuracy.quantities import FIELDS, compared_values
from experiments.own_measurements import COLUMNS, PROVENANCE, SIMULATED_L2
from gpusim.machine import simulate
from gpusim.spec import load_gpu
from kernels_cupy.algorithms import make_plan
from traces.launch import Plan
from traces.problem import AttentionProblem

SMALL = AttentionProblem(heads=2, seq=512, dim=64, causal=True)


def small_plan(name: str = "flash2") -> Plan:
    """The plan that the kernels of `name` run of a small problem."""
    return make_plan(name, SMALL, 132)


def write_own(path: Path, plans: Sequence[Plan], scaled: float = 1.0, held_out: int = 0) -> None:
    """Store simulated counters of `plans` (DRAM and cycles times `scaled`) as if they had been measured."""
    with path.open("w", newline="") as file:
        for key in PROVENANCE:
            file.write(f"# {key}: {'2026-11-30' if key == 'date' else 'made of simulated numbers'}\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for plan in plans:
            for l2 in SIMULATED_L2:
                for kernel in simulate(plan, load_gpu("h200"), SIMULATED_L2[l2]).kernels:
                    values = compared_values(kernel)
                    for field in FIELDS:
                        values[field] *= scaled if field.startswith("dram") or field == "cycles" else 1
                    writer.writerow(
                        {
                            "algorithm": plan.algorithm,
                            "problem": json.dumps(plan.problem.to_dict()),
                            "schedule": json.dumps(plan.schedule.to_dict()),
                            "l2": l2,
                            "kernel": kernel.name,
                            "time_us": kernel.time_us,
                            "held_out": held_out,
                            **values,
                        }
                    )
