"""The numeric driver: runs a plan's programs on NumPy arrays and returns what they computed.

It is strict about asynchrony. A loaded tile (and an asynchronous product) holds NaN until its `Wait`, or until a
barrier phase that its arrival completed has been awaited; so a program that reads too early computes NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Op, Reduce, Store, Vector, Wait
from traces.tensor import AnyView, Tile

Array = NDArray[np.float32]


def run(plan: Plan, inputs: Mapping[str, Array], round_storage: bool = True) -> dict[str, Array]:
    """Execute every launch of `plan` in order.

    Args:
        plan: what to run.
        inputs: an array [batch, heads, rows, cols] for each of `plan.inputs`.
        round_storage: round what is loaded from and stored to memory to the tensor's format; False keeps fp32
            everywhere, to check the algorithm apart from the format.

    Returns:
        The output tensors by name, float32. Memory never written is NaN, also after additions to it.

    Raises:
        ValueError: a missing input or one of the wrong shape.
    """
    memory: dict[str, Array] = {}
    for t in plan.tensors:
        shape = (t.batch, t.heads, t.rows, t.cols)
        if t.name not in plan.inputs:
            memory[t.name] = np.full(shape, np.nan, np.float32)
            continue
        if t.name not in inputs or inputs[t.name].shape != shape:
            got = inputs[t.name].shape if t.name in inputs else "nothing"
            raise ValueError(f"input {t.name} must have shape {shape}, not {got}")
        values = np.asarray(inputs[t.name], np.float32)
        memory[t.name] = t.dtype.round(values) if round_storage else values
    for launch in plan.launches:
        for index in range(launch.work_count):
            _run_cta(launch, index, memory, round_storage)
    return {name: memory[name] for name in plan.outputs}


def _run_cta(launch: KernelLaunch, index: int, memory: dict[str, Array], round_storage: bool) -> None:
    barriers = BarrierState()
    handler = _Numeric(memory, round_storage)
    for item in launch.work(index):
        handler.item = item
        run_agents(launch.agents(item.matrices(), item.parameters), handler, barriers)


class _Numeric:
    """Gives every operation its array value."""

    item: WorkItem

    def __init__(self, memory: dict[str, Array], round_storage: bool) -> None:
        self._memory = memory
        self._round = round_storage
        self._in_flight: dict[int, tuple[Array, Array]] = {}
        self._landing: dict[Barrier, list[Array]] = {}

    def perform(self, agent: int, op: Op) -> Any:
        match op:
            case Load(tile):
                return self._start(self._read(tile))
            case Wait(value):
                self._land(value)
            case Matmul():
                return self._matmul(op)
            case Vector(function, inputs):
                return function(*inputs)
            case Store(tile, value):
                self._write(tile, value)
            case Reduce(tile, value):
                self._write(tile, self._read(tile) + np.reshape(value, (tile.rows, tile.cols)))
            case Arrive(barrier, after):
                if after is not None:
                    self._landing.setdefault(barrier, []).append(after)
            case Await(barrier):
                for value in self._landing.pop(barrier, ()):
                    self._land(value)
        return None

    def _start(self, result: Array) -> Array:
        """An array of NaN that becomes `result` when it lands."""
        pending = np.full_like(result, np.nan)
        self._in_flight[id(pending)] = pending, result
        return pending

    def _land(self, value: Array) -> None:
        pending, result = self._in_flight.pop(id(value), (None, None))
        if pending is not None:
            pending[...] = result

    def _matmul(self, op: Matmul) -> Array:
        b = op.b.T if op.transpose_b else op.b
        product = (op.a @ b).astype(np.float32)
        if op.accumulator is not None:
            self._land(op.accumulator)  # products into one accumulator execute in order, without a Wait between
            product = op.accumulator + product
        return self._start(product) if op.asynchronous else product

    def _place(self, tile: Tile) -> tuple[AnyView, tuple[Any, ...]]:
        view = self.item.views[tile.matrix.slot]
        return view, view.index(tile.row, tile.rows, tile.col, tile.cols)

    def _read(self, tile: Tile) -> Array:
        view, place = self._place(tile)
        return self._memory[view.tensor.name][place].copy()

    def _write(self, tile: Tile, value: Array) -> None:
        view, place = self._place(tile)
        rounded = view.tensor.dtype.round(value) if self._round else value
        self._memory[view.tensor.name][place] = np.reshape(rounded, (tile.rows, tile.cols))
