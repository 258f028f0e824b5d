"""How much memory a plan's tensors take: the table behind `gpusim simulate ALGO --footprint`."""

from __future__ import annotations

from collections.abc import Sequence

from traces.launch import Plan

MIB = 1 << 20


def footprint(plan: Plan) -> dict[str, int]:
    """Bytes by tensor group: the inputs together (`Q/K/V`), every other tensor by itself, then `total`."""
    inputs = sum(t.size_bytes for t in plan.tensors if t.name in plan.inputs)
    groups = {"/".join(plan.inputs): inputs}
    groups |= {t.name: t.size_bytes for t in plan.tensors if t.name not in plan.inputs}
    return groups | {"total": sum(groups.values())}


def footprint_table(plans: Sequence[Plan]) -> str:
    """A text table in MiB, one row per plan; the plans must have the same tensors.

    B H N Nkv d | Q/K/V S P O total, where Nkv is left out when no plan has seq_kv unlike seq.
    """
    if not plans:
        raise ValueError("a footprint table needs at least one plan")
    groups = [footprint(plan) for plan in plans]
    if any(list(g) != list(groups[0]) for g in groups):
        raise ValueError("the plans of a footprint table must have the same tensors")
    cross = any(plan.problem.seq_kv != plan.problem.seq for plan in plans)
    lines = [[*("B", "H", "N"), *(("Nkv",) if cross else ()), "d", *(f"{name} MiB" for name in groups[0])]]
    for plan, sizes in zip(plans, groups, strict=True):
        p = plan.problem
        shape = [p.batch, p.heads, p.seq, *((p.seq_kv,) if cross else ()), p.dim]
        lines.append([*map(str, shape), *(f"{size / MIB:.1f}" for size in sizes.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)
