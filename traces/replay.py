"""Reads a trace file back as a plan whose programs yield the recorded operations, for the simulator.

The numbers are gone: a replayed plan can be timed, but not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from traces.algorithms import algorithm
from traces.dtypes import dtype
from traces.launch import CtaResources, KernelLaunch, Plan, WorkItem
from traces.ops import HINTS, Arrive, Await, Barrier, Load, Matmul, Op, Program, Reduce, Store, Vector, Wait
from traces.problem import AttentionProblem
from traces.record import CONSTANT, NO_VALUE
from traces.tensor import AnyView, Matrix, StackedView, Tensor, Tile, View
from traces.tracefile import Ints, Ragged, Table, read
from traces.train import default_train_schedule

OPERATIONS = {kind.__name__ for kind in (Load, Wait, Matmul, Vector, Store, Reduce, Arrive, Await)}


def load_trace(path: str | PathLike[str]) -> Plan:
    """The plan recorded in `path`: same tensors, launches, work items and operations.

    Raises:
        ValueError: not a trace file, or one that contradicts itself; one sentence naming it.
    """
    path = Path(path)
    header, tables = read(path)
    try:
        tensors = tuple(_tensor(entry) for entry in header["tensors"])
        _complete(tables["programs"])
        _check(header, tables, tensors)
        launches = tuple(
            KernelLaunch(
                entry["name"],
                entry["ctas"],
                CtaResources(**entry["resources"]),
                replay.work,
                replay.agents,
                entry["instruction"],
                entry["warps"],
                entry["cluster"],
                entry["queue"],
                entry.get("warp_columns", 1),  # these came later
                entry.get("copies", ""),
                entry.get("in_step", True),
            )
            for kernel, entry in enumerate(header["launches"])
            for replay in [_Replay(kernel, entry["queue"] or entry["ctas"], tensors, tables)]
        )
        problem = AttentionProblem.from_dict(header["problem"])
        schedule = _schedule(header, problem)
        inputs, outputs = (tuple(header[key]) for key in ("inputs", "outputs"))
        return Plan(header["algorithm"], problem, schedule, tensors, launches, inputs, outputs, header["work"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"trace file {path} is damaged: {what}") from None


def _tensor(entry: dict[str, Any]) -> Tensor:
    return Tensor(**entry | {"dtype": dtype(entry["dtype"])})


def _complete(programs: Table) -> None:
    """Give the slots of a file from before stacked views their one address each."""
    slots = programs.lists["slot_tensor"]
    for column, value in (("slot_bases", 1), ("slot_page_bytes", 0)):
        if not len(programs.lists[column].values):
            programs.lists[column] = Ragged(np.full_like(slots.values, value), slots.starts)


def _check(header: dict[str, Any], tables: dict[str, Table], tensors: tuple[Tensor, ...]) -> None:
    """Raise ValueError unless the tables refer only to what exists."""
    programs, ops, items = tables["programs"], tables["ops"], tables["items"]
    count, kernels = len(programs.ints["program"]), len(header["launches"])
    _require(np.array_equal(programs.ints["program"], np.arange(count)), "programs are not numbered from 0")
    for table in (ops, items):
        _require(_within(table.ints["program"], count), "a row names a program that is not in the file")
    for table in (programs, items):
        _require(_within(table.ints["kernel"], kernels), "a row names a kernel that is not in the header")
    _require(bool(np.all(np.diff(ops.ints["program"]) >= 0)), "operations are not in order of their programs")
    _require(_within(programs.lists["slot_tensor"].values, len(tensors)), "a program names an unknown tensor")
    agents = programs.ints["agents"][ops.ints["program"]]
    _require(bool(np.all((ops.ints["agent"] >= 0) & (ops.ints["agent"] < agents))), "a row names an unknown agent")
    unknown = set(ops.texts["op"]) - OPERATIONS
    _require(not unknown, f"operation {min(unknown, default='')!r} is unknown")
    unknown = set(ops.texts["hint"]) - {"", *HINTS}
    _require(not unknown, f"load hint {min(unknown, default='')!r} is unknown")
    _check_operands(programs, ops, tensors)
    work = np.array([entry["queue"] or entry["ctas"] for entry in header["launches"]], np.int64)
    kernel, index, number = (items.ints[c] for c in ("kernel", "index", "item"))
    _require(bool(np.all((index >= 0) & (index < work[kernel]))), "an item names a work index outside its launch")
    start = np.concatenate(([True], (np.diff(kernel) != 0) | (np.diff(index) != 0)))[: len(index)]
    place = np.diff(kernel) * (max(work.tolist(), default=1) + 1) + np.diff(index)
    _require(bool(np.all(place >= 0)), "items are not in order of kernel and work index")
    expected = np.arange(len(index)) - np.maximum.accumulate(np.where(start, np.arange(len(index)), 0))
    _require(np.array_equal(number, expected), "items of a work index are not numbered from 0")
    starts, slot_bases = programs.lists["slot_tensor"].starts, programs.lists["slot_bases"]
    for column in ("slot_bases", "slot_page_bytes"):
        _require(np.array_equal(programs.lists[column].starts, starts), f"a slot lacks its {column}")
    rows, pitch, page = (programs.lists[f"slot_{what}"].values for what in ("rows", "pitch_bytes", "page_bytes"))
    single, whole = (page == 0) & (slot_bases.values == 1), (page > 0) & (page % np.maximum(pitch, 1) == 0)
    held = slot_bases.values * page // np.maximum(pitch, 1)
    _require(bool(np.all(single | (whole & (rows <= held)))), "the pages of a slot do not hold its rows")
    bases = np.concatenate(([0], np.cumsum(slot_bases.values)))
    bases = (bases[starts[1:]] - bases[starts[:-1]])[items.ints["program"]]
    _require(np.array_equal(np.diff(items.lists["base"].starts), bases), "an item lacks a base")


def _check_operands(programs: Table, ops: Table, tensors: tuple[Tensor, ...]) -> None:
    """Raise ValueError unless operands exist, and tiles lie at the offsets that are recorded for them."""
    program, inputs, slots = ops.ints["program"], ops.lists["inputs"], programs.lists["slot_tensor"]
    values = np.bincount(program, ops.ints["results"], len(programs.ints["program"]))
    known = values[np.repeat(program, np.diff(inputs.starts))]
    _require(
        bool(np.all((inputs.values >= CONSTANT) & (inputs.values < known))),
        "a row reads a value that no operation yields",
    )
    moves = np.flatnonzero(np.isin(np.array(ops.texts["op"], np.str_), ("Load", "Store", "Reduce")))
    at = {column: ops.ints[column][moves] for column in ops.ints}
    _require(
        bool(np.all((at["slot"] >= 0) & (at["slot"] < np.diff(slots.starts)[at["program"]]))),
        "a row names an unknown slot",
    )
    slot = slots.starts[at["program"]] + at["slot"]
    element_bytes = np.array([t.dtype.element_bytes for t in tensors], np.int64)[slots.values[slot]]
    pitch = programs.lists["slot_pitch_bytes"].values[slot]
    page = programs.lists["slot_page_bytes"].values[slot]
    together = np.gcd(np.gcd(page // np.maximum(1, pitch), at["row"]), at["rows"])  # as `Tile.span`
    together = np.maximum(1, np.where(pitch == at["cols"] * element_bytes, np.where(page, together, at["rows"]), 1))
    found = (
        np.array_equal(at["pitch_bytes"], together * pitch)
        and np.array_equal(at["offset"], at["row"] * pitch + at["col"] * element_bytes)
        and np.array_equal(at["runs"], at["rows"] // together)
        and np.array_equal(at["run_bytes"], at["cols"] * element_bytes * together)
    )
    _require(found, "an operation's offset and runs are not where its tile is")


def _within(values: Ints, count: int) -> bool:
    return bool(np.all((values >= 0) & (values < count)))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


class _Replay:
    """The work items and programs of one recorded kernel."""

    def __init__(self, kernel: int, work_count: int, tensors: tuple[Tensor, ...], tables: dict[str, Table]) -> None:
        self._tensors = tensors
        self._programs, self._ops, self._items = (tables[name] for name in ("programs", "ops", "items"))
        own = np.flatnonzero(self._items.ints["kernel"] == kernel)
        first = int(own[0]) if len(own) else 0
        self._first_item = first + np.searchsorted(self._items.ints["index"][own], np.arange(work_count + 1))
        self._first_op = np.searchsorted(self._ops.ints["program"], np.arange(len(self._programs.ints["program"]) + 1))
        self._by_shape: dict[tuple[Any, ...], int] = {}
        for program in np.flatnonzero(self._programs.ints["kernel"] == kernel).tolist():
            lists = self._programs.lists
            names = [tensors[t].name for t in lists["slot_tensor"].row(program)]
            shapes = tuple(zip(names, lists["slot_rows"].row(program), lists["slot_cols"].row(program), strict=True))
            self._by_shape[shapes, tuple(lists["parameters"].row(program))] = program

    def work(self, index: int) -> Sequence[WorkItem]:
        """The items of work index `index`, with views placed by their recorded addresses."""
        first, last = self._first_item[index : index + 2].tolist()
        return [self._item(index) for index in range(first, last)]

    def _item(self, index: int) -> WorkItem:
        lists = self._programs.lists
        program = int(self._items.ints["program"][index])
        columns = ("slot_tensor", "slot_rows", "slot_cols", "slot_pitch_bytes", "slot_page_bytes", "slot_bases")
        bases, views = iter(self._items.lists["base"].row(index)), []
        for tensor, rows, cols, pitch, page, count in zip(*(lists[c].row(program) for c in columns), strict=True):
            addresses = tuple(islice(bases, count))
            views.append(_view(self._tensors[tensor], rows, cols, pitch, page, addresses))
        return WorkItem(tuple(views), tuple(lists["parameters"].row(program)))

    def agents(self, matrices: tuple[Matrix, ...], parameters: tuple[int, ...]) -> tuple[Program, ...]:
        """Generators over the recorded operations of the program for these shapes."""
        program = self._by_shape[tuple((m.name, m.rows, m.cols) for m in matrices), parameters]
        rows = slice(*self._first_op[program : program + 2].tolist())
        columns: dict[str, list[Any]] = {c: v[rows].tolist() for c, v in self._ops.ints.items()}
        columns |= {c: v[rows] for c, v in self._ops.texts.items()}
        columns |= {"inputs": [self._ops.lists["inputs"].row(i) for i in range(rows.start, rows.stop)]}
        ops = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        values: dict[int, Any] = {NO_VALUE: None, CONSTANT: "a constant of the recorded program"}
        count = int(self._programs.ints["agents"][program])
        return tuple(_agent([op for op in ops if op["agent"] == a], matrices, values) for a in range(count))


def _schedule(header: dict[str, Any], problem: AttentionProblem) -> Any:
    if header["work"] == "train":
        default: Any = default_train_schedule(header["algorithm"], problem, "wgmma", 1)
    else:
        default = algorithm(header["algorithm"]).Schedule_()
    return default.changed(header["schedule"])


def _view(
    tensor: Tensor, rows: int, cols: int, pitch_bytes: int, page_bytes: int, addresses: tuple[int, ...]
) -> AnyView:
    """The view at `addresses`; its place in the tensor follows from the layout."""
    if page_bytes:
        return StackedView(tensor, addresses, page_bytes // pitch_bytes, rows, cols, pitch_bytes)
    (address,) = addresses
    return View(tensor, *tensor.place(address), rows, cols, address, pitch_bytes)


def _agent(rows: list[dict[str, Any]], matrices: tuple[Matrix, ...], values: dict[int, Any]) -> Program:
    """Yields the recorded operations, with whatever the driver answers in place of the values."""
    for row in rows:
        missing = [token for token in row["inputs"] if token not in values]
        if missing:
            raise ValueError(f"a recorded {row['op']} reads value {missing[0]} before the operation that yields it")
        result = yield _op(row, matrices, [values[token] for token in row["inputs"]])
        if row["results"] == 1:
            values[row["token"]] = result
        elif row["results"] > 1:
            values.update(enumerate(result, row["token"]))


def _op(row: dict[str, Any], matrices: tuple[Matrix, ...], inputs: list[Any]) -> Op:
    match row["op"]:
        case "Load":
            cached = row["hint"] or HINTS[0], bool(row["through_l1"])
            return Load(_tile(row, matrices), row["multicast"], row["share"], *cached)
        case "Store":
            return Store(_tile(row, matrices), *inputs)
        case "Reduce":
            (value,) = inputs
            return Reduce(_tile(row, matrices), value, bool(row["by_fragments"]))
        case "Wait":
            return Wait(*inputs)
        case "Matmul":
            flags = (bool(row[c]) for c in ("transpose_b", "a_in_registers", "asynchronous"))
            a, b, accumulator = inputs
            return Matmul(a, b, (row["m"], row["n"], row["k"]), accumulator, *flags)
        case "Vector":
            return Vector(
                _no_numbers,
                tuple(inputs),
                exps=row["exps"],
                instructions=row["instructions"],
                shared_bytes=row["shared_bytes"],
                results=row["results"],
                chain=row["chain"],
                parts=max(1, row["parts"]),
                elementwise=bool(row["elementwise"]),
            )
        case "Arrive":
            return Arrive(_barrier(row), *inputs)
        case _:
            return Await(_barrier(row))


def _tile(row: dict[str, Any], matrices: tuple[Matrix, ...]) -> Tile:
    return Tile(matrices[row["slot"]], row["row"], row["rows"], row["col"], row["cols"])


def _barrier(row: dict[str, Any]) -> Barrier:
    return Barrier(row["barrier"], row["barrier_count"], row["open_phases"])


def _no_numbers(*_: Any) -> Any:
    raise ValueError("a plan read from a trace file can be simulated but not computed: it holds no numbers")
