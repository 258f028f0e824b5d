"""Hardware counters of a plan's kernels, by running it again under Nsight Compute (`ncu`).

The child process (`python -m kernels_cupy.counters`) reads what to run as JSON on its command line, brings the L2 into
the state that was asked for, and launches the kernels once between cudaProfilerStart and Stop. ncu repeats the whole
process for every set of counters it cannot read at once (application replay), so that the caches hold what they would
without it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels_cupy.errors import Unavailable
from kernels_cupy.toolkit import require_gpu
from traces.launch import Plan

SECTOR_BYTES = 32

BYTES = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "l2_read_bytes": ("lts__t_sectors_srcunit_tex_op_read.sum", SECTOR_BYTES),
    "l2_write_bytes": ("lts__t_sectors_srcunit_tex_op_write.sum", SECTOR_BYTES),
    "fabric_bytes": ("lts__t_sectors_srcunit_ltcfabric.sum", SECTOR_BYTES),
    "sm_read_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "sm_write_bytes": ("l1tex__m_l1tex2xbar_write_bytes.sum", 1),
}
"""Field of a kernel → (metric, bytes per unit)."""

CYCLES = "sm__cycles_elapsed.max"
HITS = "lts__t_sectors_srcunit_tex_lookup_hit.sum"
MISSES = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
DURATION = "gpu__time_duration.sum"
METRICS = (*(metric for metric, _ in BYTES.values()), CYCLES, HITS, MISSES, DURATION)

PERMISSION = "ERR_NVGPUCTRPERM"
NOT_PERMITTED = "ncu may not read the GPU's counters"


def measure_counters(plan: Plan, l2: str, seed: int = 0) -> list[dict[str, Any]]:
    """Fields of every kernel of `plan`, in launch order, under the names of the simulator's results.

    `time_us` here is ncu's duration of the kernel alone, without launch gaps.

    Args:
        l2: as for `Session.time`; `flush` lets ncu empty the caches before every kernel.

    Raises:
        Unavailable: no CuPy, no GPU, no ncu, or no permission to read counters.
    """
    require_gpu()
    output = _profile(plan, l2, seed)
    kernels = parse(output)
    if len(kernels) != len(plan.launches):
        raise Unavailable(f"ncu measured {len(kernels)} kernels where {len(plan.launches)} were launched:\n{output}")
    return kernels


def parse(output: str) -> list[dict[str, Any]]:
    """The kernels in ncu's output of `--csv --print-units base`, in launch order.

    Raises:
        Unavailable: a counter is missing; what ncu says instead.
    """
    return [{"name": name.partition("(")[0]} | _fields(name, metrics) for name, metrics in by_launch(output)]


def by_launch(output: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel, metric → value) of every launch in ncu's output, in launch order."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    metrics: dict[int, dict[str, float]] = {}
    names: dict[int, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        number = int(row["ID"])
        names[number] = row["Kernel Name"]
        metrics.setdefault(number, {})[row["Metric Name"]] = _number(row["Metric Value"])
    return [(names[n], metrics[n]) for n in sorted(metrics)]


def total(kernels: list[dict[str, Any]]) -> dict[str, float]:
    """The fields of all kernels together."""
    summed = ("cycles", "time_us", "l2_hit_sectors", "l2_lookup_sectors", *BYTES)
    sums = {field: sum(kernel[field] for kernel in kernels) for field in summed}
    return sums | {"l2_hit_rate": _ratio(sums["l2_hit_sectors"], sums["l2_lookup_sectors"])}


def _fields(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    missing = [metric for metric in METRICS if math.isnan(metrics.get(metric, math.nan))]
    if missing:
        raise Unavailable(f"ncu has no value of {', '.join(missing)} for kernel {name}; this GPU may not count it")
    lookups = metrics[HITS] + metrics[MISSES]
    return {
        "cycles": metrics[CYCLES],
        "time_us": metrics[DURATION] / 1e3,
        **{field: metrics[metric] * unit for field, (metric, unit) in BYTES.items()},
        "l2_hit_rate": _ratio(metrics[HITS], lookups),
        "l2_hit_sectors": metrics[HITS],
        "l2_lookup_sectors": lookups,
    }


def _number(text: str) -> float:
    """A cell of ncu's: digits with commas, or `n/a`."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _profile(plan: Plan, l2: str, seed: int) -> str:
    job = {"algorithm": plan.algorithm, "problem": plan.problem.to_dict(), "schedule": plan.schedule.to_dict()}
    options = ["--replay-mode", "application", "--cache-control", "all" if l2 == "flush" else "none"]
    return run_ncu(options, ["kernels_cupy.counters", json.dumps(job | {"l2": l2, "seed": seed})])


def run_ncu(
    options: Sequence[str], child: Sequence[str], timeout_s: float | None = None, metrics: Sequence[str] = METRICS
) -> str:
    """What ncu prints of `metrics` of the kernels that a module launches between cudaProfilerStart and Stop.

    Args:
        options: of ncu, for replay, caches and the choice of kernels.
        child: the module and its arguments.
        timeout_s: when to end both.

    Raises:
        Unavailable: no ncu, no permission to read counters, or not in time; else what ncu says.
    """
    command = [_tool(), "--csv", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
    command += [*options, "--metrics", ",".join(metrics), sys.executable, "-m", *child]
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    environment = os.environ | {"PYTHONPATH": path}
    # A session of its own, so that ncu's children end with it.
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Unavailable(f"ncu was not done in {timeout_s:.0f} s") from None
    said = output + errors
    if PERMISSION in said:
        raise Unavailable(
            f"{NOT_PERMITTED}; run as root, or load the NVIDIA driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if process.returncode:
        raise Unavailable(f"ncu failed with status {process.returncode}:\n{said.strip()}")
    return output


def count_launches(
    kernel: str, metrics: Mapping[str, str], child: Sequence[str], timeout_s: float | None = None
) -> list[dict[str, float]]:
    """Counters of a micro-benchmark's launches, in order, with the caches as they are left.

    Args:
        kernel: ncu's choice of kernels by name.
        metrics: field → metric.
        child: the module that launches them, and its arguments; see `run_ncu`.
        timeout_s: when to end both.

    Raises:
        Unavailable: as `run_ncu`, or no launch was counted.
    """
    options = ["--replay-mode", "application", "--cache-control", "none", "-k", kernel]
    output = run_ncu(options, child, timeout_s, list(metrics.values()))
    found = [{field: counted[metric] for field, metric in metrics.items()} for _, counted in by_launch(output)]
    if not found:
        raise Unavailable(f"ncu measured nothing: {output.strip()}")
    return found


def ncu_version() -> str:
    """Version of Nsight Compute; Unavailable without it."""
    done = subprocess.run([_tool(), "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"Version (\S+)", done.stdout)
    return found[1] if found else "unknown"


def _tool() -> str:
    tool = shutil.which("ncu")
    if tool is None:
        raise Unavailable(
            "Nsight Compute (ncu) is not on the PATH; it comes with the CUDA toolkit, or from developer.nvidia.com"
        )
    return tool


def _run_job(text: str) -> None:
    """The child: everything up to the measured launches happens outside the profiled range."""
    from kernels_cupy.arrays import random_inputs
    from kernels_cupy.run import Session
    from traces.algorithms import algorithm
    from traces.problem import AttentionProblem

    job = json.loads(text)
    module = algorithm(job["algorithm"])
    plan = module.plan(AttentionProblem.from_dict(job["problem"]), module.Schedule_(**job["schedule"]))
    session = Session(plan, random_inputs(plan, job["seed"]))
    cupy = require_gpu()
    session.launch()
    if job["l2"] != "warm":
        session.stopwatch.displace_l2()
    cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.start()
    session.launch()
    cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.stop()


if __name__ == "__main__":
    _run_job(sys.argv[1])
