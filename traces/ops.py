"""The tile operations that programs yield.

A program is a generator. What it receives back from a `yield` is the value of the operation: an array in the numeric
driver, a stand-in in the drivers that only need the order and the addresses.

    q = yield Load(Q.tile(i * 128, 128))        # starts an asynchronous copy into shared memory
    yield Wait(q)                               # q may be read from here on
    s = yield Matmul(q, k, transpose_b=True)    # tensor cores
    p = yield Vector(softmax, (s,), exps=...)   # CUDA cores and the exponential unit
    yield Store(O.tile(i * 128, 128), o)        # posted write
    yield Reduce(dQ.tile(i * 128, 128), dq)     # posted fp32 addition, carried out in the L2
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from traces.hints import HINTS
from traces.tensor import Tile

__all__ = ["HINTS", "Arrive", "Await", "Barrier", "Load", "Matmul", "Op", "Program"]
__all__ += ["Reduce", "Store", "Vector", "Wait"]


@dataclass(frozen=True, slots=True)
class Load:
    """Start copying `tile` from global to shared memory (cp.async, TMA); yields a value to `Wait` for.

    Attributes:
        tile: what to copy. Rows past the matrix are not read; consumers see zeros only if they pad.
        multicast: CTAs of the cluster that load this very tile together: each asks the L2 for its 1/multicast share
            and all of them receive the whole tile (TMA multicast).
        share: which share this CTA asks for, 0 <= share < multicast.
        hint: one of `HINTS`.
        through_l1: a plain load, which looks in the SM's L1 first and leaves the data there.
    """

    tile: Tile
    multicast: int = 1
    share: int = 0
    hint: str = "normal"
    through_l1: bool = False

    def __post_init__(self) -> None:
        if self.hint not in HINTS:
            raise ValueError(f"load hint {self.hint!r} is not one of {', '.join(HINTS)}")
        if self.through_l1 and self.multicast > 1:
            raise ValueError("a multicast load does not go through the L1")


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until an asynchronous `Load` or `Matmul` is complete; only then may its value be read."""

    value: Any


@dataclass(frozen=True, slots=True)
class Matmul:
    """accumulator += a @ b (or a @ b.T) on the tensor cores; yields the new accumulator.

    Attributes:
        a, b: operands of shape [m, k] and [k, n] ([n, k] with `transpose_b`).
        shape: (m, n, k) that the tensor cores execute (padded to the tile, whatever the operands' ragged size).
        accumulator: fp32 [m, n], or None for zero.
        a_in_registers: A comes from registers (P in attention), not from shared memory.
        asynchronous: issue only (wgmma); the value needs a `Wait`.
    """

    a: Any
    b: Any
    shape: tuple[int, int, int]
    accumulator: Any = None
    transpose_b: bool = False
    a_in_registers: bool = False
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Vector:
    """Element-wise and row work on the CUDA cores; yields `function(*inputs)`.

    Attributes:
        function: what the numeric driver computes.
        inputs: its arguments.
        exps: exponentials executed (MUFU operations).
        instructions: other fp32 instructions executed, counted per lane.
        shared_bytes: shared memory traffic of the step in bytes (exchange between warps), half written, half read.
        results: values that `function` returns; more than one come back as a tuple.
        chain: instructions of each thread that wait for one another, such as those that find a CTA's place. What else
            the step executes runs under them.
        elementwise: no value crosses lanes, as those of row maxima and sums do, so what follows waits for no shuffles.
        parts: equal parts of the work. What follows waits for the first; the others run under it, but for the end of
            the next product (exponentials that stand between the products of an earlier part).
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    exps: int = 0
    instructions: int = 0
    shared_bytes: int = 0
    results: int = 1
    chain: int = 0
    parts: int = 1
    elementwise: bool = False


def find_place(chain: int, threads: int = 0) -> Vector:
    """`chain` instructions that find the place of a CTA, or of its next block, before anything of it is copied.

    Args:
        threads: that execute them, if they are so many that the SM's issue slots may run short.
    """
    return Vector(_nothing, (), instructions=chain * threads, chain=chain, elementwise=True)


def _nothing() -> None:
    """No number comes of it."""


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` to `tile`: posted. The program goes on when the SM has sent it; where TMA copies, at once, but for
    its next `Store` or `Reduce`, which waits for this one.
    """

    tile: Tile
    value: Any


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add `value` to `tile` in global memory (red.global.add.f32, cp.reduce.async.bulk; posted like a `Store`).

    The additions happen in the L2, one element at a time and in any order, so CTAs may share a tile. Something must
    have been stored there by an earlier kernel.

    Attributes:
        by_fragments: a warp's instruction adds 32 bytes to each of eight rows, as mma leaves them, not 128 to one.

    Raises:
        ValueError: the tile is not fp32.
    """

    tile: Tile
    value: Any
    by_fragments: bool = False

    def __post_init__(self) -> None:
        matrix = self.tile.matrix
        if matrix.dtype.name != "fp32":
            raise ValueError(f"reductions add fp32 numbers, but {matrix.name} is {matrix.dtype.name}")


@dataclass(frozen=True, slots=True)
class Barrier:
    """A named mbarrier of the CTA: a phase completes after `count` arrivals.

    Attributes:
        name: identity within the CTA; the same name in the next work item is the same barrier.
        count: arrivals per phase.
        open_phases: phases complete at the start (1 for the 'empty' barrier of a free stage).
    """

    name: str
    count: int = 1
    open_phases: int = 0


@dataclass(frozen=True, slots=True)
class Arrive:
    """Arrive at `barrier`, at once or when the asynchronous `after` completes (TMA's complete_tx)."""

    barrier: Barrier
    after: Any = None


@dataclass(frozen=True, slots=True)
class Await:
    """Block until the next phase of `barrier` that this agent has not yet seen is complete."""

    barrier: Barrier


Op = Load | Wait | Matmul | Vector | Store | Reduce | Arrive | Await
Program = Generator[Op, Any, Any]
"""What one agent (a warp, a warpgroup, or a whole CTA) does for one work item."""
