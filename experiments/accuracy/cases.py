"""What can be simulated and stored: measured attention calls, and plans that only watch for drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.accuracy.quantities import FIELDS
from experiments.measurements import SIMULATED_L2, L2State, attention_calls, has_attention_calls
from experiments.own_measurements import OwnRun, own_runs
from experiments.torch_kernels import MappedCall, map_call
from gpusim.report.text import short_shape
from kernels_cupy.algorithms import KERNELS, make_plan
from traces.algorithms import ALGORITHMS, algorithm
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.schedule import Schedule

__all__ = [
    "TORCH_CALIBRATION",
    "Case",
    "all_cases",
    "drift_cases",
    "fast_cases",
    "own_cases",
    "shape_class",
    "torch_cases",
    "unmeasured_cases",
]

SUITES = ("torch", "own", "drift", "unmeasured")
SM_COUNT = 132
STATES: tuple[L2State, ...] = ("warm", "cold")

TORCH_CALIBRATION = ("naive", "cudnn", "cudnn_causal")
"""PyTorch's paths that figures of the machine were fitted to (docs/validation.md). The rule: every other path, the
backward passes and decoding, is held out."""

FAST_TORCH = (
    "naive B1_H1_N4096_d128 warm",
    "naive B1_H1_N4096_d128 cold",
    "cudnn B1_H1_N4096_d128 cold",
    "cudnn B1_H1_N8192_d128 cold",
    "cudnn_causal B1_H1_N4096_d128 warm",
    "cudnn_causal B1_H1_N4096_d128 cold",
    "cudnn_causal B1_H16_N4096_d64 cold",
    "decode_flash B1_H32_Hkv8_M4096_d128 warm",
    "decode_flash B1_H32_Hkv8_M4096_d128 cold",
    "decode_flash B1_H32_Hkv32_M4096_d128 cold",
)
FAST_OWN_BYTES = 0.3e9

Measured = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A plan to simulate, and what the card counted for it.

    Attributes:
        suite: `torch`, `own`; `drift`: small runs of every algorithm; `unmeasured`: what docs/accuracy.md predicts.
        label: unique in its suite.
        algorithm: for tables: PyTorch's path, or the registry name.
        shape: class of the problem, `shape_class`.
        l2: the simulator's state of the L2.
        held_out: no figure of the simulator was fitted to it.
        registry: name in `traces.algorithms`.
        problem, schedule: of the plan.
        measured: field → value per kernel, in launch order; empty if not measured.
    """

    suite: str
    label: str
    algorithm: str
    shape: str
    l2: str
    held_out: bool
    registry: str
    problem: AttentionProblem
    schedule: Schedule
    measured: tuple[Measured, ...] = ()

    @property
    def port_bytes(self) -> float:
        """Measured at the SM ports, by which the simulation's time goes; 0 if not measured."""
        return sum(k["sm_read_bytes"] + k["sm_write_bytes"] for k in self.measured)

    def plan(self) -> Plan:
        """The tensors and launches to simulate."""
        return algorithm(self.registry).plan(self.problem, self.schedule)


def shape_class(problem: AttentionProblem) -> str:
    """`decoding`, `one head`, `many heads`, `many sequences`."""
    if problem.seq < 16 < problem.seq_kv:
        return "decoding"
    if problem.batch > 1:
        return "many sequences"
    return "one head" if problem.heads == 1 else "many heads"


def torch_cases(gpu: str = "h200") -> list[Case]:
    """Every measured PyTorch call with a counterpart here; none of a GPU without such measurements."""
    if not has_attention_calls(gpu):
        return []
    calls = [call for state in STATES for call in attention_calls(gpu, state)]
    return [_torch_case(mapped) for call in calls if (mapped := map_call(call)) is not None]


def _torch_case(mapped: MappedCall) -> Case:
    call = mapped.call
    return Case(
        "torch",
        call.label,
        call.algorithm,
        shape_class(call.problem),
        SIMULATED_L2[call.l2],
        call.algorithm not in TORCH_CALIBRATION,
        mapped.algorithm,
        call.problem,
        mapped.schedule,
        tuple({field: float(getattr(kernel, field)) for field in FIELDS} for kernel in call.kernels),
    )


def own_cases(gpu: str = "h200", path: Path | None = None) -> list[Case]:
    """Every measured run of this project's kernels; none before they were measured."""
    return [_own_case(run) for run in own_runs(gpu, path)]


TIME_KEYS = ("softmax_instructions", "combine_loads")
"""Schedule keys that say how long a kernel takes and not what it does: as they are now, not as they were measured."""


def _own_case(run: OwnRun) -> Case:
    default = make_plan(run.algorithm, run.problem, SM_COUNT).schedule
    schedule = default.changed({key: value for key, value in run.schedule.items() if key not in TIME_KEYS})
    return Case(
        "own",
        f"{run.algorithm} {describe(run.problem, schedule, default)} {run.l2}",
        run.algorithm,
        shape_class(run.problem),
        run.l2,
        run.held_out,
        run.algorithm,
        run.problem,
        schedule,
        run.kernels,
    )


def describe(problem: AttentionProblem, schedule: Schedule, default: Schedule) -> str:
    """Problem, and the schedule keys that are not as usual, in one phrase that tells runs apart."""
    usual, asked = default.to_dict(), _unusual(problem)
    changed = {key: value for key, value in schedule.to_dict().items() if value != usual[key]}
    return " ".join([short_shape(problem.to_dict()), *(f"{k}={v}" for k, v in (asked | changed).items())])


def _unusual(problem: AttentionProblem) -> dict[str, Any]:
    """Fields that `short_shape` does not show, where they are not the default."""
    plain = AttentionProblem(heads=problem.heads, seq=problem.seq)
    shown = {"batch", "heads", "kv_heads", "seq", "seq_kv", "dim", "dtype", "kv_dtype", "v_dtype", "causal"}
    hidden = {k: v for k, v in problem.to_dict().items() if k not in shown and v != getattr(plain, k)}
    if problem.dim_v == problem.dim:
        hidden.pop("dim_v", None)
    return hidden


def drift_cases() -> list[Case]:
    """A small run of every algorithm: as its kernels run it, or where it has none, with the trace's own schedule."""
    cases = []
    for name, module in ALGORITHMS.items():
        shape: dict[str, Any] = {"heads": 4, "seq": 1024, "dim": 128, "causal": not name.startswith("naive")}
        if "decode" in name:
            shape |= {"heads": 8, "kv_heads": 2, "seq": 1, "seq_kv": 2048, "causal": False}
        problem = AttentionProblem(**shape, page_size=16 if name.startswith("paged") else 0)
        if name in KERNELS:
            schedule = make_plan(name, problem, SM_COUNT).schedule
        else:
            schedule = module.default_schedule(problem, "wgmma", SM_COUNT)
        label = f"{name} {short_shape(problem.to_dict())} cold"
        cases.append(Case("drift", label, name, shape_class(problem), "cold", True, name, problem, schedule))
    return cases


def fast_cases(gpu: str = "h200") -> list[Case]:
    """Measured runs that simulate in a second or three, for gates: chosen ones of PyTorch, and of our own kernels the
    smallest of each algorithm.
    """
    chosen = [case for case in torch_cases(gpu) if case.label in FAST_TORCH]
    smallest: dict[str, Case] = {}
    for case in sorted(own_cases(gpu), key=lambda case: case.port_bytes):
        if case.port_bytes <= FAST_OWN_BYTES:
            smallest.setdefault(case.algorithm, case)
    return [*chosen, *smallest.values()]


def unmeasured_cases(gpu: str = "h200") -> list[Case]:
    """PyTorch's naive path where nobody measured it: 2048 rows (with the tiles of 4096), and cold runs, whose L2 is
    empty before the first kernel only.
    """
    found = []
    for case in torch_cases(gpu):
        if case.algorithm != "naive" or case.l2 != "flush" or case.problem.batch * case.problem.heads > 16:
            continue
        shapes = [case.problem]
        if case.problem.heads == 1 and case.problem.seq == 4096:
            shapes.insert(0, replace(case.problem, seq=2048, seq_kv=2048))
        for problem in shapes:
            for l2 in ("warm", "flush", "cold") if problem.seq == 2048 else ("cold",):
                label = f"naive {short_shape(problem.to_dict())} {l2}"
                changes: dict[str, Any] = {"label": label, "l2": l2, "problem": problem, "measured": ()}
                found.append(replace(case, suite="unmeasured", **changes))
    return found


def all_cases(suites: Sequence[str] = SUITES, gpu: str = "h200") -> list[Case]:
    """The cases of some suites, the quickest first."""
    found = {
        "torch": lambda: torch_cases(gpu),
        "own": lambda: own_cases(gpu),
        "drift": drift_cases,
        "unmeasured": lambda: unmeasured_cases(gpu),
    }
    cases = [case for suite in suites for case in found[suite]()]
    return sorted(cases, key=lambda case: case.port_bytes)
