"""One problem, measured and simulated: what `gpusim compare` shows, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.accuracy.quantities import FIELDS, QUANTITIES, compared_values
from experiments.own_measurements import own_provenance, own_runs
from gpusim.result import Result
from traces.analytic import sm_port_bytes, textbook
from traces.launch import Plan

__all__ = ["Measured", "compare", "from_measurement", "stored_measurement"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A run on a card.

    Attributes:
        source: where it comes from, in words.
        provenance: card, driver, date and so on.
        kernels: per launch, in order, fields of the JSON contract.
    """

    source: str
    provenance: Mapping[str, str]
    kernels: Sequence[Mapping[str, Any]]


def from_measurement(measurement: Mapping[str, Any], source: str) -> Measured:
    """The result of `gpusim run --counters`, as a dictionary.

    Raises:
        ValueError: it holds no counters.
    """
    kernels = measurement["kernels"]
    missing = [field for field in FIELDS if any(field not in kernel for kernel in kernels)]
    if missing:
        raise ValueError(f"{source} holds no {missing[0]}; measure it with gpusim run --counters")
    return Measured(source, measurement.get("provenance", {}), kernels)


def stored_measurement(plan: Plan, l2: str, gpu: str, path: Path | None = None) -> Measured | None:
    """The committed measurement of the same problem, schedule and state of the L2; None where there is none.

    An empty L2 before the run (`cold`) and before every kernel (`flush`) are the same for a single kernel.
    """
    schedule = plan.schedule.to_dict()
    states = {"cold", "flush"} if len(plan.launches) == 1 and l2 != "warm" else {l2}
    for run in own_runs(gpu, path):
        same = run.algorithm == plan.algorithm and run.problem == plan.problem and run.l2 in states
        if same and plan.schedule.changed(run.schedule).to_dict() == schedule:
            provenance = own_provenance(gpu, path)
            return Measured(f"stored, {provenance.get('date', 'undated')}", provenance, run.kernels)
    return None


def compare(measured: Measured, result: Result, plan: Plan) -> dict[str, Any]:
    """Every compared field of every kernel and of the whole run, side by side.

    Args:
        result: the simulation of `plan`.

    Raises:
        ValueError: another number of kernels was measured.
    """
    kernels: list[Mapping[str, Any]] = [{"name": k.name, **compared_values(k)} for k in result.kernels]
    theirs, simulated = measured.kernels, result.to_dict()
    if len(kernels) != len(theirs):
        raise ValueError(f"{len(theirs)} kernels were measured but {len(kernels)} simulated; the programs differ")
    sides = [{"name": k["name"], **_sides(m, k)} for m, k in zip(theirs, kernels, strict=True)]
    total = _sides(_total(theirs), _total(kernels))
    for field, value in _closed_forms(plan).items():
        total[field]["closed_form"] = value
    analytic = dict(simulated["analytic"])
    for who, sums in (("measured", _total(theirs)), ("simulated", _total(kernels))):
        analytic[f"{who}_over_closed_form"] = (sums["dram_read_bytes"] + sums["dram_write_bytes"]) / analytic[
            "hbm_bytes"
        ]
    return {
        **{key: simulated[key] for key in ("gpu", "algorithm", "problem", "schedule", "l2")},
        "source": measured.source,
        "provenance": dict(measured.provenance),
        "fields": {
            q.field: {"title": q.title, "unit": q.unit, "scale": q.scale, "error_unit": q.error_unit}
            for q in QUANTITIES
        },
        "kernels": sides,
        "total": total,
        "analytic": analytic,
    }


def _sides(measured: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {
        q.field: {
            "measured": float(measured[q.field]),
            "simulated": float(simulated[q.field]),
            "error": q.error(float(measured[q.field]), float(simulated[q.field])),
        }
        for q in QUANTITIES
    }


def _total(kernels: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """All kernels as one. Hit rates are weighted by the bytes asked of the L2: each sector is looked up once."""
    chosen = list(kernels)
    sums = {field: sum(float(k[field]) for k in chosen) for field in FIELDS if field != "l2_hit_rate"}
    asked = sums["l2_read_bytes"] + sums["l2_write_bytes"]
    hits = sum(float(k["l2_hit_rate"]) * (k["l2_read_bytes"] + k["l2_write_bytes"]) for k in chosen)
    return {**sums, "l2_hit_rate": hits / asked if asked else math.nan}


def _closed_forms(plan: Plan) -> dict[str, float]:
    """The textbook's HBM bytes, and the bytes that the tiles move through the SM ports."""
    hbm, ports = textbook(plan).values(), sm_port_bytes(plan).values()
    return {
        "dram_read_bytes": sum(read for read, _ in hbm),
        "dram_write_bytes": sum(written for _, written in hbm),
        "sm_read_bytes": sum(read for read, _ in ports),
        "sm_write_bytes": sum(written for _, written in ports),
    }
