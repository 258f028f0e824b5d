"""Speed of the simulator: FlashAttention-2 forward, 32 heads x 8192 x 128, on an H200, on one core.

    python -m experiments.bench [--json FILE|-] [--profile]

Runs in a fresh process pinned to one core; compiled code is made ready on a small problem first and not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["BenchResult", "main"]

SECTOR_BYTES = 32
RESULT_MARK = "bench-result "


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What one benchmark process found.

    Attributes:
        workload: what was simulated.
        sm_port_sectors: 32-byte sectors through the SM ports, reads and writes.
        wall_seconds: of each repetition, in order.
        sectors_per_second: at the fastest repetition.
        import_seconds, warm_up_seconds, plan_seconds: the parts that are not counted: importing, the small problem
            (compilation), building the plan.
        peak_rss_bytes: largest resident memory of the process.
        cycles: simulated GPU cycles.
    """

    workload: str
    sm_port_sectors: int
    wall_seconds: tuple[float, ...]
    sectors_per_second: float
    import_seconds: float
    warm_up_seconds: float
    plan_seconds: float
    peak_rss_bytes: int
    cycles: float

    def text(self) -> str:
        """A few lines for people."""
        best, median = min(self.wall_seconds), statistics.median(self.wall_seconds)
        gigabytes = self.sm_port_sectors * SECTOR_BYTES / 1e9
        return "\n".join(
            (
                self.workload,
                f"  SM-port sectors     {self.sm_port_sectors / 1e6:10.1f} M  ({gigabytes:.2f} GB)",
                f"  simulated sectors/s {self.sectors_per_second / 1e6:10.2f} M",
                f"  wall time           {best:10.2f} s best, {median:.2f} s median of {len(self.wall_seconds)}",
                f"  peak memory         {self.peak_rss_bytes / 1e6:10.0f} MB",
                f"  simulated cycles    {self.cycles:10.0f}",
                f"  not counted: import {self.import_seconds:.2f} s, warm-up with compilation "
                f"{self.warm_up_seconds:.2f} s, plan {self.plan_seconds:.3f} s",
            )
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.child:
        print(RESULT_MARK + json.dumps(asdict(_measure(options))))
        return 0
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "experiments.bench", *given, "--child"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    result = None
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(RESULT_MARK):
            data = json.loads(line.removeprefix(RESULT_MARK))
            result = BenchResult(**{**data, "wall_seconds": tuple(data["wall_seconds"])})
        else:
            print(line, end="")
    if child.wait() or result is None:
        return child.returncode or 1
    report = json.dumps(asdict(result), indent=2)
    if options.json == "-":
        print(report)
        return 0
    print(result.text())
    if options.json:
        Path(options.json).write_text(report + "\n")
    return 0


def _measure(options: argparse.Namespace) -> BenchResult:
    """Runs in the child process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if options.core is None else options.core})
    started = time.perf_counter()
    from gpusim.machine import simulate
    from gpusim.spec.load import load_gpu
    from traces.algorithms import algorithm
    from traces.problem import AttentionProblem

    imported = time.perf_counter()
    spec = load_gpu(options.gpu)
    chosen = algorithm(options.algorithm)

    def shape(heads: int, seq: int) -> AttentionProblem:
        return AttentionProblem(heads=heads, seq=seq, dim=options.dim, causal=options.causal)

    instruction = "wgmma" if spec.sm.has_wgmma else "mma_sync"
    small, problem = shape(1, 512), shape(options.heads, options.seq)
    simulate(chosen.plan(small, chosen.default_schedule(small, instruction, spec.sm.count)), spec)
    warmed = time.perf_counter()
    plan = chosen.plan(problem, chosen.default_schedule(problem, instruction, spec.sm.count))
    planned = time.perf_counter()

    if options.profile:
        with cProfile.Profile() as profile:
            simulate(plan, spec)
        pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(25)
        sys.stdout.flush()

    wall = []
    for repetition in range(options.repeat):
        begun = time.perf_counter()
        result = simulate(plan, spec)
        wall.append(time.perf_counter() - begun)
        print(f"run {repetition + 1} of {options.repeat}: {wall[-1]:.2f} s", file=sys.stderr, flush=True)
    sectors = sum(k.sm_read_bytes + k.sm_write_bytes for k in result.kernels) // SECTOR_BYTES
    mask = "causal" if options.causal else "non-causal"
    size = f"{options.heads} heads x {options.seq} x {options.dim}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return BenchResult(
        workload=f"{options.algorithm} {size} {mask} on {options.gpu}, one core",
        sm_port_sectors=int(sectors),
        wall_seconds=tuple(wall),
        sectors_per_second=sectors / min(wall),
        import_seconds=imported - started,
        warm_up_seconds=warmed - imported,
        plan_seconds=planned - warmed,
        peak_rss_bytes=peak if sys.platform == "darwin" else peak * 1024,
        cycles=float(sum(k.cycles for k in result.kernels)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--algorithm", default="flash2")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--gpu", default="h200", help="GPU preset or file")
    parser.add_argument("--repeat", type=int, default=3, help="counted runs")
    parser.add_argument("--core", type=int, help="core to run on (default: the last one allowed)")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON (- for standard output)")
    parser.add_argument("--profile", action="store_true", help="profile one run before the counted ones")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
