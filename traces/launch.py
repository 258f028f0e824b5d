"""Kernel launches: a grid of CTAs, what each needs of an SM, and the programs they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from traces.ops import Program
from traces.problem import AttentionProblem
from traces.tensor import AnyView, Matrix, Tensor


@dataclass(frozen=True, slots=True)
class CtaResources:
    """What one CTA occupies on an SM.

    Attributes:
        threads: threads per CTA.
        registers_per_thread: registers allocated to each.
        shared_bytes: static + dynamic shared memory.
    """

    threads: int
    registers_per_thread: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One piece of work of a CTA: the views its matrices are bound to, and the program's integer parameters.

    A CTA of an ordinary kernel has one item; a persistent CTA has as many as it loops over. Two items with equal
    `shape_key` run the same operations at other addresses.
    """

    views: tuple[AnyView, ...]
    parameters: tuple[int, ...]

    def shape_key(self) -> tuple[Any, ...]:
        return tuple(v.shape_key() for v in self.views), self.parameters

    def matrices(self) -> tuple[Matrix, ...]:
        return tuple(Matrix(slot, v.tensor.name, v.rows, v.cols, v.tensor.dtype) for slot, v in enumerate(self.views))


Agents = Callable[[tuple[Matrix, ...], tuple[int, ...]], tuple[Program, ...]]
"""Builds the agents of one work item from its matrices and parameters. It must depend on nothing else."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel: `ctas` CTAs, launched in index order.

    Attributes:
        name: kernel name in tables.
        ctas: grid size.
        resources: per-CTA needs.
        work: work index → its items. CTA c starts with index c.
        agents: the program(s).
        instruction: tensor-core family, `mma_sync` (operands go through registers) or `wgmma` (from shared memory);
            `none` without products.
        copies: how loads reach shared memory: `cp_async` (warps copy) or `tma`; `none`: they go to registers. Empty:
            as goes with the instruction.
        warps: warps that share a Matmul.
        cluster: consecutive CTAs that form a thread-block cluster and start together.
        queue: number of work indices when CTAs are persistent and fetch their next index from a shared counter (a CTA
            of cluster rank r takes the indices with index % cluster == r); 0 when each CTA does its own index only.
        warp_columns: of `warps`, how many lie along a Matmul's columns; the rest lie along its rows. With `mma_sync`
            each reads A of its rows and B of its columns.
        in_step: whether the warps of an agent wait for each other at barriers; else some work while others copy.
    """

    name: str
    ctas: int
    resources: CtaResources
    work: Callable[[int], Sequence[WorkItem]]
    agents: Agents
    instruction: str = "none"
    warps: int = 4
    cluster: int = 1
    queue: int = 0
    warp_columns: int = 1
    copies: str = ""
    in_step: bool = True

    @property
    def copied_by(self) -> str:
        """`copies`, or what goes with the instruction."""
        return self.copies or {"mma_sync": "cp_async", "wgmma": "tma"}.get(self.instruction, "none")

    @property
    def work_count(self) -> int:
        """Number of work indices, over all CTAs."""
        return self.queue or self.ctas


class Workload(Protocol):
    """What a machine needs to run something: its tensors in address order and the kernels, launched back to back.

    A `Plan` is one; so is a micro-benchmark, which has no attention problem behind it.
    """

    @property
    def algorithm(self) -> str: ...

    @property
    def tensors(self) -> tuple[Tensor, ...]: ...

    @property
    def launches(self) -> tuple[KernelLaunch, ...]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """An algorithm applied to a problem: its tensors and the kernels to launch back to back.

    Attributes:
        algorithm: registry name.
        problem, schedule: what it was built from.
        tensors: every tensor in memory, in address order.
        launches: the kernels.
        inputs, outputs: tensor names given before and expected after.
        work: what is computed, one of `traces.problem.WORK`.
    """

    algorithm: str
    problem: AttentionProblem
    schedule: Any
    tensors: tuple[Tensor, ...]
    launches: tuple[KernelLaunch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: str = "forward"

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)
