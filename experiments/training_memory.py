"""What a training step of one attention layer must keep between its passes, and what it costs to keep less.

Each algorithm once as it is (P, or O and LSE, stay in memory from the forward to the backward pass) and once with
gradient checkpointing (nothing stays but Q, K and V; the backward pass begins by running what it needs of the forward
pass again). Bytes and FLOPs are closed forms, times are simulated.

python -m experiments.training_memory --heads 32 --dim 128 --seq 1024 2048 4096 --causal
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpusim.cli.tables import table
from traces.algorithms import ALGORITHMS, algorithm
from traces.launch import Plan
from traces.problem import AttentionProblem
from traces.train import BACKWARD, TrainSchedule, default_train_schedule, kept_bytes, passes_of, train_plan

__all__ = ["Row", "checkpointed", "main", "measure"]

MIB = 1 << 20

Simulator = Callable[[Plan], Sequence[float]]
"""Plan → microseconds of each of its launches."""


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm on one problem, with or without checkpointing.

    Attributes:
        kept_bytes: what must stay between the passes besides Q, K and V.
        scratch_bytes: the largest sum of other tensors that a pass needs besides its inputs and outputs.
        flops: operations of the step's matrix products, over unmasked pairs.
        again_flops: of these, forward work that is done a second time.
        forward_us, backward_us: simulated times; what is done again counts as backward.
    """

    algorithm: str
    problem: AttentionProblem
    checkpoint: bool
    kept_bytes: int
    scratch_bytes: int
    flops: int
    again_flops: int
    forward_us: float
    backward_us: float

    @property
    def step_us(self) -> float:
        return self.forward_us + self.backward_us


def checkpointed(name: str, problem: AttentionProblem, schedule: TrainSchedule) -> Plan:
    """The backward pass of `name` from Q, K, V and dO alone.

    The naive algorithm makes P again, but not O, which its backward pass does not read; FlashAttention runs all of its
    forward pass again for O and LSE.
    """
    if BACKWARD[name] == "naive_backward":
        return algorithm("naive_backward").plan(problem, schedule.backward.changed({"saved": "none"}))
    return train_plan(*passes_of(name, problem, schedule))


def measure(name: str, problem: AttentionProblem, schedule: TrainSchedule, simulate: Simulator) -> list[Row]:
    """Rows without and with checkpointing."""
    forward, backward = passes_of(name, problem, schedule)
    step = train_plan(forward, backward)
    again = checkpointed(name, problem, schedule)
    times, count = simulate(step), len(forward.launches)
    forward_us, backward_us = sum(times[:count]), sum(times[count:])
    product = 2 * problem.dim * pairs(problem)  # S = QK^T, which a naive backward pass with P does not need
    naive = BACKWARD[name] == "naive_backward"
    flops = problem.flops("train") - (product if naive else 0)
    more = product if naive else problem.flops()
    kept = sum(kept_bytes(problem, name).values())
    scratch = [max(scratch_bytes(forward), scratch_bytes(plan)) for plan in (backward, again)]
    return [
        Row(name, problem, False, kept, scratch[0], flops, 0, forward_us, backward_us),
        Row(name, problem, True, 0, scratch[1], flops + more, more, forward_us, sum(simulate(again))),
    ]


def pairs(problem: AttentionProblem) -> int:
    """Unmasked (query, key) pairs of all heads."""
    return problem.flops() // (2 * (problem.dim + problem.dim_v))


def scratch_bytes(plan: Plan) -> int:
    """Bytes of a plan's tensors that are neither its inputs nor its outputs."""
    return sum(t.size_bytes for t in plan.tensors if t.name not in (*plan.inputs, *plan.outputs))


def render(rows: Sequence[Row]) -> str:
    """A text table; times beside those of the same algorithm without checkpointing."""
    lines, plain = [], {(r.algorithm, r.problem): r for r in rows if not r.checkpoint}
    for r in rows:
        longer = r.step_us / plain[r.algorithm, r.problem].step_us - 1
        sizes = [f"{r.kept_bytes / MIB:,.1f}", f"{r.scratch_bytes / MIB:,.1f}"]
        work = [f"{r.flops / 1e9:,.1f}", f"+{100 * r.again_flops / (r.flops - r.again_flops):.0f} %"]
        times = [f"{x:,.0f}" for x in (r.forward_us, r.backward_us, r.step_us)]
        again = "again" if r.checkpoint else "kept"
        lines.append([r.algorithm, str(r.problem.seq), again, *sizes, *work, *times, f"{100 * longer:+.0f} %"])
    header = ["algorithm", "seq", "forward", "kept MiB", "scratch MiB", "GFLOP", "of it again"]
    header += ["forward us", "backward us", "step us", "longer"]
    return table(lines, header, numeric=[1, *range(3, len(header))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    from gpusim.machine import simulate
    from gpusim.spec.load import load_gpu

    trained = [name for name in BACKWARD if name in ALGORITHMS]
    parser = argparse.ArgumentParser(
        prog="python -m experiments.training_memory", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(trained)} (default all)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=0)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--gpu", default="h200", help="GPU preset or file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.algorithms if name not in trained]
    if unknown:
        parser.error(f"algorithm {unknown[0]!r} is not one of {', '.join(trained)}")
    gpu = load_gpu(options.gpu)
    instruction = "wgmma" if gpu.sm.has_wgmma else "mma_sync"
    rows: list[Row] = []
    shape = {"batch": options.batch, "heads": options.heads, "kv_heads": options.kv_heads, "dim": options.dim}
    for seq in options.seq:
        for name in options.algorithms or trained:
            try:
                problem = AttentionProblem(**shape, seq=seq, causal=options.causal)
            except ValueError as error:
                parser.error(str(error))
            schedule = default_train_schedule(name, problem, instruction, gpu.sm.count)
            rows += measure(
                name, problem, schedule, lambda plan: [kernel.time_us for kernel in simulate(plan, gpu).kernels]
            )
            print(f"{name}, {seq}: done", file=sys.stderr, flush=True)
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
