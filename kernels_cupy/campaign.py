"""Counters of many kernels in few runs of Nsight Compute: one process launches them all, one CSV row per launch.

How the state of the L2 is made, as ncu must run a kernel several times to read all of `counters.METRICS`:

- `cold`: kernel replay with `--cache-control all`. ncu restores memory and empties the caches before every pass of each
  kernel, so each kernel starts with an empty L2, and the process runs only once.
- `warm`: application replay with `--cache-control none`. The whole process runs once per pass, and makes each call once
  before the one that is counted, from an L2 full of other data, so that it holds what the call before left. Kernel
  replay cannot do that: between passes it would hold what restoring the kernel's memory left.

Launch order tells the rows apart; the process says which calls it made. Rows are written after each run of ncu.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_cupy.algorithms import kernels, make_plan
from kernels_cupy.commented_csv import read_facts, read_rows, write_facts
from kernels_cupy.compile import INCLUDE, compile_source
from kernels_cupy.counters import BYTES, ncu_version, parse, run_ncu
from kernels_cupy.cta_record import recording
from kernels_cupy.errors import Unavailable
from kernels_cupy.kernel import compile_all
from kernels_cupy.provenance import provenance
from kernels_cupy.stopwatch import BETWEEN
from kernels_cupy.toolkit import require_gpu
from traces.algorithms import algorithm as trace_algorithm
from traces.launch import Plan
from traces.problem import AttentionProblem

REPLAY = {
    "cold": ("--replay-mode", "kernel", "--cache-control", "all"),
    "warm": ("--replay-mode", "application", "--cache-control", "none"),
}
"""State of the L2 → ncu's options."""

KEY = ("algorithm", "problem", "schedule", "l2")
COUNTED = ("time_us", "cycles", *BYTES, "l2_hit_rate", "l2_hit_sectors", "l2_lookup_sectors")
COLUMNS = (*KEY, "kernel", *COUNTED, "held_out")
HASH = "source_sha256"


@dataclass(frozen=True, slots=True)
class Case:
    """One call to be counted; `held_out` from whatever is fitted to the others."""

    plan: Plan
    held_out: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Algorithm, problem and schedule, as in the CSV's columns of these names."""
        plan = self.plan
        return plan.algorithm, json.dumps(plan.problem.to_dict()), json.dumps(plan.schedule.to_dict())


def case_of(algorithm: str, problem: AttentionProblem, sm_count: int, held_out: bool) -> Case:
    """The call that `algorithm` makes by default; ValueError, in its kernels' sentence, for what they do not do."""
    plan = make_plan(algorithm, problem, sm_count)
    kernels(plan)
    return Case(plan, held_out)


def sources() -> list[Path]:
    """Every CUDA file that a kernel of an algorithm may come from."""
    root = INCLUDE.parent
    return sorted([*root.glob("*.cu"), *(root / "algorithms").glob("*.cu"), *INCLUDE.glob("*.cuh")])


def compile_into(folder: Path, plans: Iterable[Plan], arch: str, record: str = "") -> None:
    """Put the cubins of the kernels of `plans`, and of the stopwatch, into `folder`, for `GPUSIM_CUBINS` elsewhere.

    Args:
        record: also the builds that record their `ctas`, or `stamps` too.

    Raises:
        ValueError: there can be no such folder, or the kernels do not support a plan.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--compile {folder}: {error.strerror}") from None
    launches = [spec for plan in plans for spec in kernels(plan)]
    if record:
        launches = [*launches, *(recording(spec, record == "stamps") for spec in launches)]
    specs = {(spec.source, json.dumps(dict(spec.defines), sort_keys=True)): spec for spec in launches}
    for compiled in (*compile_all(list(specs.values()), arch), compile_source(BETWEEN, {}, arch)):
        for path in (compiled.path, compiled.path.with_suffix(".json")):
            if path.parent != folder:
                shutil.copy(path, folder)
    print(f"{len(specs)} kernels and the stopwatch's in {folder}")


def count(batches: Iterable[tuple[str, Sequence[Case]]], output: Path, limit_s: float) -> bool:
    """Count batches of cases, each in one state of the L2, and add a row per launch to the CSV `output`.

    Cases that `output` has already are left out.

    Returns:
        Whether everything was counted; False when `limit_s` seconds were over first, or ncu failed on a batch.

    Raises:
        ValueError: `output` was measured with other kernels.
        Unavailable: no CuPy, no GPU or no ncu.
    """
    require_gpu()
    start = time.monotonic()
    done = _open(output, {"ncu": ncu_version(), **provenance(*sources())})
    complete = True
    for l2, cases in batches:
        left = [case for case in cases if (*case.key, l2) not in done]
        remaining = limit_s - (time.monotonic() - start)
        try:
            rows = _count(left, l2, max(1.0, remaining)) if left else []
        except Unavailable as error:  # the other batches may fare better
            print(f"campaign: {l2} batch of {len(left)} calls: {error}", file=sys.stderr, flush=True)
            complete = False
            continue
        with output.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerows(rows)
        print(f"{l2}: {len(left)} calls, {len(rows)} kernels, {time.monotonic() - start:.0f} s", flush=True)
    return complete


def rows_of(cases: Sequence[Case], l2: str, output: str) -> list[dict[str, Any]]:
    """A row per launch of `cases`, from what ncu printed of them.

    Raises:
        Unavailable: ncu has other kernels than these, or lacks a counter.
    """
    counted = parse(output)
    expected = [(case, spec) for case in cases for spec in kernels(case.plan)]
    names, seen = [spec.entry for _, spec in expected], [kernel["name"] for kernel in counted]
    if names != seen:
        at = next((i for i, (a, b) in enumerate(zip(names, seen, strict=False)) if a != b), min(len(names), len(seen)))
        raise Unavailable(
            f"ncu measured {len(seen)} kernels where {len(names)} were launched; number {at} is not as expected"
        )
    return [
        dict(zip(KEY, (*case.key, l2), strict=True))
        | {"kernel": spec.name, "held_out": int(case.held_out)}
        | {field: _digits(kernel[field]) for field in COUNTED}
        for (case, spec), kernel in zip(expected, counted, strict=True)
    ]


def _digits(value: float) -> str:
    """A count as a whole number; a time or a rate to six digits."""
    return str(int(value)) if value == int(value) else f"{value:.6g}"


def _open(output: Path, about: Mapping[str, str]) -> set[tuple[str, ...]]:
    """Start `output`, or see what it has: the keys of its rows."""
    if not output.exists():
        text = io.StringIO()
        write_facts(text, about)
        csv.writer(text).writerow(COLUMNS)
        output.write_text(text.getvalue(), newline="")
        return set()
    if read_facts(output).get(HASH) != about[HASH]:
        raise ValueError(f"{output} was measured with other kernels than these; give another --output")
    return {tuple(row[name] for name in KEY) for row in read_rows(output)}


def _count(cases: Sequence[Case], l2: str, timeout_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        jobs, made = Path(folder, "jobs.json"), Path(folder, "made.json")
        jobs.write_text(json.dumps([case.key for case in cases]))
        said = run_ncu(REPLAY[l2], ["kernels_cupy.campaign", str(jobs), str(made)], timeout_s)
        return rows_of([cases[number] for number in json.loads(made.read_text())], l2, said)


def _launch_all(jobs: Path, made: Path) -> None:
    """The process that ncu watches: every call twice, the second one counted; writes the numbers of those made."""
    from kernels_cupy.run import Session

    cupy, numbers = require_gpu(), []
    failures = (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)
    for number, (name, problem, schedule) in enumerate(json.loads(jobs.read_text())):
        module = trace_algorithm(name)
        try:
            plan = module.plan(
                AttentionProblem.from_dict(json.loads(problem)), module.Schedule_(**json.loads(schedule))
            )
            session = Session(plan, None)
            session.stopwatch.displace_l2()  # what filled the tensors is in the L2, dirty
            session.launch()
            cupy.cuda.Device().synchronize()
        except (ValueError, Unavailable, *failures) as error:
            print(f"campaign: {name} {problem} is left out: {error}", file=sys.stderr)
            continue
        cupy.cuda.profiler.start()
        session.launch()
        cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.stop()
        numbers.append(number)
        del session
        cupy.get_default_memory_pool().free_all_blocks()
    made.write_text(json.dumps(numbers))


if __name__ == "__main__":
    _launch_all(Path(sys.argv[1]), Path(sys.argv[2]))
