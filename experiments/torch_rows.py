"""Simulate the measured PyTorch attention calls and print simulated against measured, kernel by kernel.

python -m experiments.torch_rows --both --max-gb 5
python -m experiments.torch_rows --only cudnn --match H32_N4096 --set-schedule cta_order=head_fastest
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.measurements import SIMULATED_L2, L2State, MeasuredCall, attention_calls
from experiments.row_errors import QUANTITIES, KernelRow, save_csv, summary, table
from experiments.torch_kernels import MappedCall, map_call
from traces.launch import Plan

__all__ = ["Job", "main", "run_job", "run_jobs", "select"]

PATHS = ("naive", "cudnn", "naive_bwd", "flash_bwd", "decode_flash")
"""PyTorch's paths that can be simulated, without their causal variants."""

Simulator = Callable[[Plan, str], Any]
"""(plan, L2 state) → result with `kernels` and `sectors_per_second`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call to simulate, in a form that can be sent to another process.

    Attributes:
        mapped: the call, its algorithm and schedule.
        gpu: preset name or file.
        overrides: `section.key=value` changes of the GPU.
    """

    mapped: MappedCall
    gpu: str
    overrides: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.mapped.call.label


@dataclass(frozen=True, slots=True)
class Done:
    """A simulated call: its rows, and how long it took (seconds, SM-port sectors per second)."""

    rows: tuple[KernelRow, ...]
    seconds: float
    sectors_per_second: float


def select(
    l2_states: Iterable[L2State], only: str = "", match: str = "", max_gb: float = float("inf")
) -> list[MappedCall]:
    """Measured calls that have a counterpart to simulate.

    Args:
        l2_states: which files.
        only: one of `PATHS` (`cudnn` is both masks); empty for all.
        match: text that the label must contain.
        max_gb: leave out calls that moved more than this through the SM ports, GB.
    """
    calls = [call for state in l2_states for call in attention_calls("h200", state)]
    mapped = [m for call in calls if (m := map_call(call)) is not None]
    return [
        m
        for m in mapped
        if only in ("", m.call.algorithm.removesuffix("_causal"))
        and match in m.call.label
        and _port_bytes(m.call) <= max_gb * 1e9
    ]


def _port_bytes(call: MeasuredCall) -> float:
    return sum(k.sm_read_bytes + k.sm_write_bytes for k in call.kernels)


def run_job(job: Job, simulator: Simulator | None = None) -> Done:
    """Simulate one call and pair its kernels with the measured ones."""
    call = job.mapped.call
    started = time.perf_counter()
    result = (simulator or _machine(job))(job.mapped.plan(), SIMULATED_L2[call.l2])
    seconds = time.perf_counter() - started
    rows = tuple(
        KernelRow(call.label, call.algorithm, simulated.name, _values(measured), _values(simulated))
        for measured, simulated in zip(call.kernels, result.kernels, strict=True)
    )
    return Done(rows, seconds, result.sectors_per_second)


def _machine(job: Job) -> Simulator:
    from gpusim.machine import simulate
    from gpusim.spec.load import load_gpu

    spec = load_gpu(job.gpu, job.overrides)
    return lambda plan, l2: simulate(plan, spec, l2=l2)


def _values(kernel: Any) -> dict[str, float]:
    return {q.field: float(getattr(kernel, q.field)) for q in QUANTITIES}


def run_jobs(jobs: Sequence[Job], processes: int = 1) -> Iterator[tuple[int, Done]]:
    """(index, outcome) of each job as it finishes, in up to `processes` processes."""
    if processes == 1:
        for index, job in enumerate(jobs):
            yield index, run_job(job)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job): index for index, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    states: tuple[L2State, ...] = options.states or ("warm",)
    selected = select(states, options.only, options.match, options.max_gb)
    if not selected:
        parser.error("no measured call is left by --only, --match and --max-gb")
    try:
        changes = dict(pair.split("=", 1) for pair in options.set_schedule)
        selected = [MappedCall(m.call, m.algorithm, m.schedule.changed(changes)) for m in selected]
    except ValueError as error:
        parser.error(f"--set-schedule: {error}")
    jobs = [Job(m, options.gpu, tuple(options.set)) for m in selected]

    outcomes: dict[int, Done] = {}
    for index, done in run_jobs(jobs, options.jobs):
        outcomes[index] = done
        rate = done.sectors_per_second / 1e6
        progress = f"[{len(outcomes)}/{len(jobs)}] {jobs[index].label}: {done.seconds:.1f} s, {rate:.1f} M sectors/s"
        print(progress, file=sys.stderr, flush=True)
    rows = [row for index in sorted(outcomes) for row in outcomes[index].rows]
    print(table(rows))
    print()
    print(summary(rows))
    if options.csv:
        save_csv(rows, options.csv)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.torch_rows", description=(__doc__ or "").split("\n")[0]
    )
    which = parser.add_mutually_exclusive_group()
    for name, states in (("warm", ("warm",)), ("cold", ("cold",)), ("both", ("warm", "cold"))):
        which.add_argument(
            f"--{name}", dest="states", action="store_const", const=states, help=f"{name} L2 measurements"
        )
    parser.add_argument("--only", choices=PATHS, default="", help="one PyTorch path")
    parser.add_argument("--match", default="", metavar="TEXT", help="calls whose label contains TEXT, e.g. H32_N4096")
    parser.add_argument("--max-gb", type=float, default=float("inf"), help="skip calls with more GB at the SM ports")
    parser.add_argument("--gpu", default="h200", help="GPU preset or file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the GPU, e.g. l2.ways=32"
    )
    parser.add_argument("--set-schedule", action="append", default=[], metavar="KEY=VALUE", help="change the schedules")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", type=Path, help="also write the rows here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
