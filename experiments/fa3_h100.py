"""FlashAttention-3 forward on an H100 SXM that nobody here has: simulated against published times.

    python -m experiments.fa3_h100 [--match 4x8192] [--set KEY=VALUE] [--set-schedule KEY=VALUE] [--csv FILE]

The times are Nsight Compute's, at an SM clock of 1500 MHz with cold caches; beside them stand those of FlashGPU-Sim, an
instruction-level simulator, for the same rows (experiments/measured/public/README.md).

No figure of the H100 preset is fitted to these rows, but the test is not blind: the instructions per score and the
block prologue of `flash3` were checked against their totals while they were counted.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from gpusim.machine import simulate
from gpusim.plans import make_plan
from gpusim.spec import GpuSpec
from gpusim.spec.load import load_gpu
from traces.problem import AttentionProblem

__all__ = ["Outcome", "PublishedRow", "main", "published_rows", "simulate_row"]

PUBLISHED = Path(__file__).parent / "measured" / "public" / "h100_flash3_forward.csv"
CLOCK = "sm.sustained_clock=1500MHz"
"""The clock at which the rows were measured."""
LAYOUT = "bshd"
"""FlashAttention's own: [batch, seq, heads, dim]."""
REFERENCE_WALL_SECONDS = (528, 778)
"""What FlashGPU-Sim took for one row, on 4 threads: published for FlashAttention-2 rows of 86 to 103 us only."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A measured call.

    Attributes:
        problem: what was computed, in fp16.
        measured_us: time of the kernel on the card.
        reference_us: time that FlashGPU-Sim simulates.
    """

    problem: AttentionProblem
    measured_us: float
    reference_us: float

    @property
    def label(self) -> str:
        """`batch x seq, H heads, d dim, mask`."""
        p = self.problem
        return f"{p.batch}x{p.seq} H{p.heads} d{p.dim} {'causal' if p.causal else 'full'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulated row: its time, and the wall time that the simulation took."""

    row: PublishedRow
    simulated_us: float
    wall_seconds: float

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_us / self.row.measured_us - 1


def published_rows() -> list[PublishedRow]:
    """The rows of the data file, in its order."""
    with PUBLISHED.open(newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> PublishedRow:
    batch, seq, heads, dim = (int(record[key]) for key in ("batch", "seq", "heads", "dim"))
    causal = record["mask"] == "causal"
    problem = AttentionProblem(batch=batch, seq=seq, heads=heads, dim=dim, causal=causal, layout=LAYOUT)
    return PublishedRow(problem, float(record["measured_us"]), float(record["reference_us"]))


def simulate_row(row: PublishedRow, gpu: GpuSpec, changes: dict[str, str]) -> Outcome:
    """Simulate `flash3` with its default schedule and `changes` to it, from an empty L2."""
    plan = make_plan("flash3", row.problem, gpu, changes)
    started = time.perf_counter()
    result = simulate(plan, gpu)
    return Outcome(row, sum(k.time_us for k in result.kernels), time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    rows = [row for row in published_rows() if options.match in row.label]
    if not rows:
        parser.error(f"--match {options.match!r} leaves no row")
    gpu = load_gpu("h100-sxm", [CLOCK, *options.set])
    changes = dict(pair.split("=", 1) for pair in options.set_schedule)
    print(f"{'':26} {'measured us':>11} {'simulated us':>12} {'error %':>8} {'reference %':>11} {'wall s':>7}")
    outcomes = []
    for row in rows:
        outcomes.append(outcome := simulate_row(row, gpu, changes))
        print(
            f"{row.label:26} {row.measured_us:11.2f} {outcome.simulated_us:12.2f} {100 * outcome.error:+8.1f} "
            f"{100 * (row.reference_us / row.measured_us - 1):+11.1f} {outcome.wall_seconds:7.2f}",
            flush=True,
        )
    print(_summary(outcomes))
    if options.csv:
        _save(outcomes, options.csv)
    return 0


def _summary(outcomes: Sequence[Outcome]) -> str:
    ours = [100 * abs(o.error) for o in outcomes]
    theirs = [100 * abs(o.row.reference_us / o.row.measured_us - 1) for o in outcomes]
    low, high = REFERENCE_WALL_SECONDS
    return (
        f"error of time: mean {mean(ours):.1f} %, largest {max(ours):.1f} %"
        f" (reference simulator: mean {mean(theirs):.1f} %, largest {max(theirs):.1f} %)\n"
        f"wall time: {sum(o.wall_seconds for o in outcomes):.1f} s for {len(outcomes)} rows on one core"
        f" (reference simulator: {low} to {high} s for one FlashAttention-2 row of 0.1 ms, on 4 threads)"
    )


def _save(outcomes: Sequence[Outcome], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "measured_us", "simulated_us", "error", "wall_seconds"))
        writer.writerows((o.row.label, o.row.measured_us, o.simulated_us, o.error, o.wall_seconds) for o in outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.fa3_h100", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--match", default="", metavar="TEXT", help="rows whose label contains TEXT, e.g. 4x8192")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the GPU")
    parser.add_argument("--set-schedule", action="append", default=[], metavar="KEY=VALUE", help="change the schedule")
    parser.add_argument("--csv", type=Path, help="also write the rows here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
