"""What padding a batch to its longest sequence costs: padded three-kernel attention against packed FlashAttention-2.

    python -m experiments.padding_waste [--gpu NAME] [--lengths 2048,1024,512,256] [--heads N] [--dim N] [--causal]

Bytes at the SM ports and tensor-core operations are those of the tile programs; HBM bytes and time are simulated.
"Useful" operations are the two products over the pairs of a query and a key that it attends to.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gpusim.errors import UserError
from gpusim.machine import simulate
from gpusim.plans import make_plan
from gpusim.spec import GpuSpec, load_gpu
from traces.analytic import sm_port_bytes, total
from traces.problem import AttentionProblem

__all__ = ["Waste", "main", "measure", "table"]

ALGORITHMS = ("naive", "naive_online_softmax", "flash2")
DEFAULT_LENGTHS = (2048, 1024, 512, 256)


@dataclass(frozen=True, slots=True)
class Waste:
    """One algorithm on one batch.

    Attributes:
        algorithm: registry name.
        sm_port_bytes: through all SM ports, both ways.
        hbm_bytes: simulated DRAM reads and writes, with what is left dirty in the L2.
        time_us: simulated, all kernels.
        executed_flops, useful_flops: on the tensor cores, and over visible pairs alone.
    """

    algorithm: str
    sm_port_bytes: int
    hbm_bytes: int
    time_us: float
    executed_flops: int
    useful_flops: int

    @property
    def wasted(self) -> float:
        """Part of the executed operations that serves no visible pair."""
        return 1 - self.useful_flops / self.executed_flops


def measure(algorithm: str, problem: AttentionProblem, gpu: GpuSpec) -> Waste:
    """Simulate one algorithm with its default schedule from a cold L2."""
    plan = make_plan(algorithm, problem, gpu)
    kernels = simulate(plan, gpu).total()
    hbm_bytes = kernels.dram_read_bytes + kernels.dram_write_bytes + kernels.dirty_bytes_left
    return Waste(
        algorithm, total(sm_port_bytes(plan)), hbm_bytes, kernels.time_us, kernels.flops, problem.flops(plan.work)
    )


def table(rows: Sequence[Waste]) -> str:
    """A line per algorithm."""
    lines = [("algorithm", "SM port MB", "HBM MB", "time us", "executed GFLOP", "useful GFLOP", "wasted")]
    lines += [
        (
            row.algorithm,
            f"{row.sm_port_bytes / 1e6:.1f}",
            f"{row.hbm_bytes / 1e6:.1f}",
            f"{row.time_us:.1f}",
            f"{row.executed_flops / 1e9:.2f}",
            f"{row.useful_flops / 1e9:.2f}",
            f"{row.wasted:.1%}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m experiments.padding_waste", description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", default="h200", help="preset or TOML file (default: %(default)s)")
    parser.add_argument(
        "--lengths", default=",".join(map(str, DEFAULT_LENGTHS)), help="rows of each sequence, by commas"
    )
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args(arguments)
    try:
        lengths = tuple(int(text) for text in options.lengths.split(","))
        problem = AttentionProblem(heads=options.heads, dim=options.dim, lengths=lengths, causal=options.causal)
        gpu = load_gpu(options.gpu)
        rows = [measure(algorithm, problem, gpu) for algorithm in ALGORITHMS]
    except (ValueError, UserError) as error:
        parser.error(str(error))
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
