"""What `gpusim simulate` can say without simulating: memory footprints and closed forms."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpusim.cli.outputs import emit_json
from gpusim.cli.tables import table
from gpusim.closed_form import closed_form
from gpusim.errors import UserError

if TYPE_CHECKING:
    from gpusim.spec import GpuSpec
    from traces.launch import Plan

__all__ = ["run"]


def run(args: argparse.Namespace, gpu: GpuSpec, plans: Sequence[Plan]) -> int:
    """Print the table that `--footprint` or `--analytic` asks for, or write it as JSON.

    Raises:
        UserError: an output was asked for that only a simulation can fill.
    """
    option = "--footprint" if args.footprint else "--analytic"
    for name in ("html", "perfetto", "ctas", "save", "check"):
        if getattr(args, name):
            raise UserError(f"{option} simulates nothing, so --{name} does not apply")
    if args.json:
        emit_json([_entry(plan, gpu, args.footprint) for plan in plans], args.json)
    if args.json != "-":
        print(_footprints(plans) if args.footprint else _closed_forms(plans, gpu))
    return 0


def _entry(plan: Plan, gpu: GpuSpec, sizes: bool) -> dict[str, Any]:
    from traces.footprint import footprint

    return {
        "gpu": gpu.name,
        "algorithm": plan.algorithm,
        "problem": plan.problem.to_dict(),
        "schedule": plan.schedule.to_dict(),
        **({"footprint": footprint(plan)} if sizes else {"analytic": closed_form(plan, gpu)}),
    }


def _footprints(plans: Sequence[Plan]) -> str:
    from traces.footprint import footprint_table

    return "\n\n".join(f"{plan.algorithm}\n{footprint_table([plan])}" for plan in plans)


def _closed_forms(plans: Sequence[Plan], gpu: GpuSpec) -> str:
    rows = []
    for plan in plans:
        closed = closed_form(plan, gpu)
        numbers = [f"{closed['hbm_bytes'] / 1e6:,.2f}", f"{closed['flops'] / 1e9:,.3f}"]
        numbers += [f"{closed[key]:,.2f}" for key in ("arithmetic_intensity", "ridge_point")]
        rows.append([plan.algorithm, *numbers, closed["bound"]])
    header = ["closed form", "HBM MB", "GFLOP", "FLOP/B", f"ridge of {gpu.name}", "bound"]
    return table(rows, header, numeric=[1, 2, 3, 4])
