"""Records a plan to a trace file: every distinct program once, then which CTA runs it where.

record(plan, "flash2.parquet")
plan = load_trace("flash2.parquet")        # traces.replay
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from traces.execute import BarrierState, run_agents
from traces.launch import KernelLaunch, Plan, WorkItem
from traces.ops import Arrive, Await, Barrier, Load, Matmul, Op, Reduce, Store, Vector, Wait
from traces.tensor import Tile
from traces.tracefile import TraceWriter, writing

NO_VALUE = -1
"""Token of an operand that is None, and of an operation that yields nothing."""
CONSTANT = -2
"""Token of an operand that no operation made (a zero tile, say)."""


def record(plan: Plan, path: str | PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
    """Write `plan` to `path`, as Parquet or .npz by its ending.

    Programs that differ in nothing but addresses (equal `WorkItem.shape_key`) are run and written once.

    Args:
        progress: called with (work indices done, in all) after each.

    Raises:
        ValueError: another ending.
    """
    total, done, program_count = sum(launch.work_count for launch in plan.launches), 0, 0
    with writing(Path(path), _header(plan)) as out:
        for kernel, launch in enumerate(plan.launches):
            programs: dict[tuple[Any, ...], int] = {}
            for index in range(launch.work_count):
                for number, item in enumerate(launch.work(index)):
                    key = item.shape_key()
                    if key not in programs:
                        programs[key] = program_count
                        _record_program(out, program_count, kernel, launch, item)
                        program_count += 1
                    base = [address for view in item.views for address in view.addresses]
                    row = {"kernel": kernel, "index": index, "item": number, "program": programs[key], "base": base}
                    out.add("items", row)
                done += 1
                if progress is not None:
                    progress(done, total)


def _header(plan: Plan) -> dict[str, Any]:
    """What the tables do not say, in plain JSON types."""
    return {
        "algorithm": plan.algorithm,
        "problem": plan.problem.to_dict(),
        "schedule": plan.schedule.to_dict(),
        "tensors": [asdict(t) | {"dtype": t.dtype.name} for t in plan.tensors],
        "launches": [
            {
                "name": launch.name,
                "ctas": launch.ctas,
                "queue": launch.queue,
                "resources": asdict(launch.resources),
                "instruction": launch.instruction,
                "warps": launch.warps,
                "cluster": launch.cluster,
                "warp_columns": launch.warp_columns,
                "copies": launch.copies,
                "in_step": launch.in_step,
            }
            for launch in plan.launches
        ],
        "inputs": list(plan.inputs),
        "outputs": list(plan.outputs),
        "work": plan.work,
    }


def _record_program(out: TraceWriter, program: int, kernel: int, launch: KernelLaunch, item: WorkItem) -> None:
    agents = launch.agents(item.matrices(), item.parameters)
    run_agents(agents, _Recorder(out, program, item), BarrierState())
    out.add(
        "programs",
        {
            "program": program,
            "kernel": kernel,
            "agents": len(agents),
            "parameters": item.parameters,
            "slot_tensor": [v.tensor.index for v in item.views],
            "slot_rows": [v.rows for v in item.views],
            "slot_cols": [v.cols for v in item.views],
            "slot_pitch_bytes": [v.pitch_bytes for v in item.views],
            "slot_page_bytes": [v.page_bytes for v in item.views],
            "slot_bases": [len(v.addresses) for v in item.views],
        },
    )


@dataclass(frozen=True, slots=True)
class _Value:
    """Stands for what an operation yields."""

    token: int


def _token(value: Any) -> int:
    return NO_VALUE if value is None else value.token if isinstance(value, _Value) else CONSTANT


class _Recorder:
    """Writes one row per operation and gives every value a token."""

    def __init__(self, out: TraceWriter, program: int, item: WorkItem) -> None:
        self._out = out
        self._program = program
        self._item = item
        self._tokens = 0

    def perform(self, agent: int, op: Op) -> Any:
        results = op.results if isinstance(op, Vector) else int(isinstance(op, Load | Matmul))
        first = self._tokens if results else NO_VALUE
        self._tokens += results
        place = {"program": self._program, "agent": agent, "op": type(op).__name__, "token": first, "results": results}
        self._out.add("ops", place | {"slot": -1} | self._columns(op))
        if results > 1:
            return tuple(_Value(first + i) for i in range(results))
        return _Value(first) if results else None

    def _columns(self, op: Op) -> dict[str, Any]:
        """The columns that this kind of operation fills."""
        match op:
            case Load(tile, multicast, share):
                cached = {"hint": op.hint, "through_l1": int(op.through_l1)}
                return self._tile(tile) | {"multicast": multicast, "share": share} | cached
            case Store(tile, value):
                return self._tile(tile) | {"inputs": [_token(value)]}
            case Reduce(tile, value):
                return self._tile(tile) | {"inputs": [_token(value)], "by_fragments": int(op.by_fragments)}
            case Wait(value):
                return {"inputs": [_token(value)]}
            case Matmul():
                return {
                    "inputs": [_token(op.a), _token(op.b), _token(op.accumulator)],
                    "m": op.shape[0],
                    "n": op.shape[1],
                    "k": op.shape[2],
                    "transpose_b": int(op.transpose_b),
                    "a_in_registers": int(op.a_in_registers),
                    "asynchronous": int(op.asynchronous),
                }
            case Vector():
                return {
                    "inputs": [_token(x) for x in op.inputs],
                    "exps": op.exps,
                    "instructions": op.instructions,
                    "shared_bytes": op.shared_bytes,
                    "chain": op.chain,
                    "parts": op.parts,
                    "elementwise": int(op.elementwise),
                }
            case Arrive(barrier, after):
                return self._barrier(barrier) | {"inputs": [_token(after)]}
            case Await(barrier):
                return self._barrier(barrier)

    def _tile(self, tile: Tile) -> dict[str, Any]:
        view = self._item.views[tile.matrix.slot]
        offset, runs, run_bytes, pitch_bytes = tile.span(view)
        return {
            "slot": tile.matrix.slot,
            "tensor": view.tensor.name,
            "offset": offset,
            "runs": runs,
            "run_bytes": run_bytes,
            "pitch_bytes": pitch_bytes,
            "row": tile.row,
            "rows": tile.rows,
            "col": tile.col,
            "cols": tile.cols,
        }

    @staticmethod
    def _barrier(barrier: Barrier) -> dict[str, Any]:
        return {"barrier": barrier.name, "barrier_count": barrier.count, "open_phases": barrier.open_phases}
