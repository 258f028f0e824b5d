"""Figure 2 (left) of the FlashAttention paper (Dao et al. 2022, arXiv:2205.14135), simulated: bytes and time.

python -m experiments.paper_fa1
python -m experiments.paper_fa1 --blocks        # figure 2 (middle): forward against block size

GPT-2 medium's attention, forward and backward: 64 sequences, 16 heads x 1024 x 64, fp16, on an A100 with 40 GB. The
paper's standard attention is PyTorch's, which runs five kernels for GPT-2 (figure 1, right): matmul, mask, softmax,
dropout, matmul. Mask and dropout are element-wise kernels of their own (section 2.2), so they are simulated as such,
and so are their gradients; the bytes per element are PyTorch's, whose dropout keeps a mask of one byte.

A backward algorithm that this version does not have is left out, and the comparison says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpusim.cli.tables import table
from gpusim.machine import simulate
from gpusim.plans import check_fits, make_plan
from gpusim.result import Result
from gpusim.spec import GpuSpec, load_gpu
from traces.algorithms import ALGORITHMS
from traces.dtypes import DTYPES
from traces.launch import CtaResources, KernelLaunch, WorkItem, Workload
from traces.ops import Load, Program, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.tensor import Matrix, Tensor, TensorTable

__all__ = ["ElementWise", "Measured", "blocks", "element_wise", "main", "measure"]

GPU = "a100-40gb-sxm"
GPT2_MEDIUM = AttentionProblem(batch=64, heads=16, seq=1024, dim=64)
FAR = 0.15


@dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation of figure 2: its kernels, and what the paper measured.

    Attributes:
        algorithms: forward and backward.
        passes: element-wise kernels: name, bytes per element of each tensor read, of each written.
        gflop, hbm_gb, milliseconds: of the paper.
        why: why bytes, or milliseconds, are as far off as they are.
    """

    name: str
    algorithms: tuple[str, str]
    passes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    gflop: float
    hbm_gb: float
    milliseconds: float
    why: dict[str, str]


STANDARD = Implementation(
    "standard",
    ("naive", "naive_backward"),
    (
        ("mask", (2,), (2,)),
        ("dropout", (2,), (2, 1)),
        ("dropout backward", (2, 1), (2,)),
        ("mask backward", (2,), (2,)),
    ),
    66.6,
    40.3,
    41.7,
    {},
)
FLASH = Implementation("FlashAttention", ("flash1", "flash2_backward"), (), 75.2, 4.4, 7.3, {})


@dataclass(frozen=True, slots=True)
class ElementWise:
    """A kernel that computes [batch, heads, rows, cols] tensors from others, element by element."""

    algorithm: str
    tensors: tuple[Tensor, ...]
    launches: tuple[KernelLaunch, ...]


def element_wise(name: str, shape: tuple[int, int, int, int], reads: Sequence[int], writes: Sequence[int]) -> Workload:
    """One pass over tensors of `shape` with `reads` and `writes` bytes per element; 8 rows per CTA of 256 threads."""
    formats, table, rows = {1: DTYPES["int8"], 2: DTYPES["fp16"], 4: DTYPES["fp32"]}, TensorTable(), 8
    for number, element_bytes in enumerate((*reads, *writes)):
        table.add(f"{'in' if number < len(reads) else 'out'} {number}", shape, formats[element_bytes])
    blocks_per_head = -(-shape[2] // rows)

    def work(cta: int) -> Sequence[WorkItem]:
        matrix, block = divmod(cta, blocks_per_head)
        place = divmod(matrix, shape[1])
        return [WorkItem(tuple(t.view(*place).window(block * rows, rows) for t in table.tensors), ())]

    def agents(matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        return (one_block(matrices[: len(reads)], matrices[len(reads) :]),)

    ctas = shape[0] * shape[1] * blocks_per_head
    launch = KernelLaunch(name, ctas, CtaResources(256, 32, 0), work, agents, warps=8)
    return ElementWise(name, table.tensors, (launch,))


def one_block(inputs: Sequence[Matrix], outputs: Sequence[Matrix]) -> Program:
    """Load the block of every input, compute, store the block of every output."""
    tiles = []
    for matrix in inputs:
        tiles.append((yield Load(matrix.tile(0, matrix.rows))))
    for tile in tiles:
        yield Wait(tile)
    elements = outputs[0].rows * outputs[0].cols
    result = yield Vector(lambda *x: x[0], tuple(tiles), instructions=2 * elements)
    for matrix in outputs:
        yield Store(matrix.tile(0, matrix.rows), result)


@dataclass(frozen=True, slots=True)
class Measured:
    """What kernels move and take, simulated: executed GFLOP, GB of HBM read and written, milliseconds."""

    kernels: str
    gflop: float
    hbm_gb: float
    milliseconds: float

    @classmethod
    def of(cls, result: Result) -> Measured:
        """Of a simulation; what stays dirty in the L2 is written later, so it counts."""
        total = result.total()
        moved = total.dram_read_bytes + total.dram_write_bytes + total.dirty_bytes_left
        return cls(result.plan.algorithm, total.flops / 1e9, moved / 1e9, total.time_us / 1e3)


def measure(implementation: Implementation, problem: AttentionProblem, gpu: GpuSpec) -> list[Measured]:
    """Simulate the kernels of an implementation that this version has, each group from a cold L2."""
    backward = implementation.algorithms[1] in ALGORITHMS
    workloads: list[Workload] = []
    for name in implementation.algorithms:
        if name in ALGORITHMS:
            plan = make_plan(name, problem, gpu)
            check_fits(plan, gpu)
            workloads.append(plan)
    shape = (problem.batch, problem.heads, problem.seq, problem.seq_kv)
    for name, reads, writes in implementation.passes:
        if backward or "backward" not in name:
            workloads.append(element_wise(name, shape, reads, writes))
    found = []
    for workload in workloads:
        print(f"simulating {workload.algorithm} …", file=sys.stderr, flush=True)
        found.append(Measured.of(simulate(workload, gpu)))
    return found


def compare(implementation: Implementation, found: Sequence[Measured]) -> str:
    """A table of the kernels, their sum, the paper's figures, and why the two differ where they do."""
    total = Measured("simulated", *(sum(getattr(m, f) for m in found) for f in ("gflop", "hbm_gb", "milliseconds")))
    paper = Measured("paper", implementation.gflop, implementation.hbm_gb, implementation.milliseconds)
    rows = [[m.kernels, f"{m.gflop:,.0f}", f"{m.hbm_gb:.2f}", f"{m.milliseconds:.2f}"] for m in (*found, total)]
    rows.append([paper.kernels, f"{paper.gflop}", f"{paper.hbm_gb}", f"{paper.milliseconds}"])
    lines = [table(rows, (implementation.name, "GFLOP", "HBM GB", "ms"), numeric=(1, 2, 3))]
    missing = [name for name in implementation.algorithms if name not in ALGORITHMS]
    if missing:
        lines.append(f"forward alone: this version has no {missing[0]}, which the paper's figures contain")
        return "\n".join(lines)
    for field, unit in (("hbm_gb", "HBM bytes"), ("milliseconds", "time")):
        off = getattr(total, field) / getattr(paper, field) - 1
        reason = f": {implementation.why[field]}" if abs(off) > FAR and field in implementation.why else ""
        lines.append(f"{unit} {off:+.0%}{reason}")
    return "\n".join(lines)


def blocks(problem: AttentionProblem, gpu: GpuSpec, sizes: Sequence[int]) -> str:
    """Forward HBM bytes and time of `flash1` for each block size Bc that fits the GPU."""
    rows = []
    for size in sizes:
        result = simulate(make_plan("flash1", problem, gpu, {"tile_kv": size}), gpu)
        found = Measured.of(result)
        rows.append([str(size), f"{found.hbm_gb:.2f}", f"{found.milliseconds:.2f}", str(result.kernels[0].ctas_per_sm)])
    return table(rows, ("block", "HBM GB", "ms", "CTAs per SM"), numeric=(0, 1, 2, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.paper_fa1", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=GPT2_MEDIUM.batch, help="sequences (the paper's: 64)")
    parser.add_argument("--blocks", action="store_true", help="forward against block size instead (figure 2, middle)")
    options = parser.parse_args(arguments)
    problem = AttentionProblem(batch=options.batch, heads=GPT2_MEDIUM.heads, seq=GPT2_MEDIUM.seq, dim=GPT2_MEDIUM.dim)
    gpu = load_gpu(GPU)
    if options.blocks:
        print(blocks(problem, gpu, (64, 128, 256, 512)))
        print(
            "paper: HBM accesses fall, and so does the time up to blocks of 256; then arithmetic limits (section 3.2)"
        )
        return 0
    print(f"{gpu.name}: batch {problem.batch}, {problem.heads} heads x {problem.seq} x {problem.dim} fp16")
    for implementation in (STANDARD, FLASH):
        print("\n" + compare(implementation, measure(implementation, problem, gpu)))
    print(
        "\nThe paper's GFLOPs are not those of this shape: its products alone are "
        f"{problem.flops('train') / 1e9:,.0f} GFLOP, as benchmarks of FlashAttention count them; only its bytes and "
        "times fit a batch of 64."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
