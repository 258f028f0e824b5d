"""Does a plan read back from a trace file do what the recorded plan did?"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.problems import default_plan, plans, random_inputs, stream, work_items
from traces import numeric, tracefile
from traces.algorithms import ALGORITHMS
from traces.execute import BarrierState, run_agents
from traces.launch import Plan, WorkItem
from traces.ops import Load, Op, Program, Vector
from traces.record import record
from traces.replay import load_trace
from traces.tracefile import TABLES

SUFFIXES = (".parquet", ".npz")


def _assert_same(plan: Plan, replayed: Plan) -> None:
    for field in ("algorithm", "problem", "schedule", "tensors", "inputs", "outputs", "work"):
        assert getattr(plan, field) == getattr(replayed, field), field
    for ours, theirs in zip(plan.launches, replayed.launches, strict=True):
        for name in ("name", "ctas", "resources", "instruction", "warps", "cluster", "queue"):
            assert getattr(ours, name) == getattr(theirs, name), name
        compared = set()
        for cta in range(ours.work_count):
            items: list[WorkItem] = list(ours.work(cta))
            assert items == list(theirs.work(cta))
            for item in items:
                if item.shape_key() not in compared:
                    compared.add(item.shape_key())
                    assert stream(ours, item).lines == stream(theirs, item).lines


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_does_a_replayed_plan_do_the_same(algorithm: str, suffix: str, data: st.DataObject) -> None:
    plan: Plan = data.draw(plans(algorithm, longest=80))
    with tempfile.TemporaryDirectory() as folder:
        record(plan, Path(folder) / f"trace{suffix}")
        _assert_same(plan, load_trace(Path(folder) / f"trace{suffix}"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_is_a_trace_longer_than_a_row_group_written_in_pieces(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracefile, "ROWS_PER_GROUP", 37)
    plan = default_plan("naive", heads=2, seq=150, seq_kv=200, causal=True)
    record(plan, tmp_path / f"trace{suffix}")
    _assert_same(plan, load_trace(tmp_path / f"trace{suffix}"))
    assert [p.name for p in tmp_path.iterdir()] == [f"trace{suffix}"], "nothing temporary stays behind"
    if suffix == ".parquet":
        groups = pq.ParquetFile(tmp_path / "trace.parquet")
        kinds = [set(groups.read_row_group(i, ["table"])["table"].to_pylist()) for i in range(groups.num_row_groups)]
        assert len(kinds) > 20 and all(len(kind) == 1 for kind in kinds)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_does_recording_a_replayed_plan_give_the_same_file(suffix: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    record(default_plan("flash3", heads=2, seq=300, causal=True), first)
    record(load_trace(first), second)
    (header, tables), (again, tables_again) = tracefile.read(first), tracefile.read(second)
    assert header == again
    for name, table in tables.items():
        assert table.texts == tables_again[name].texts
        for column, values in table.ints.items():
            np.testing.assert_array_equal(values, tables_again[name].ints[column], column)


def test_is_each_distinct_program_recorded_once(tmp_path: Path) -> None:
    plan = default_plan("flash2", heads=4, seq=512)
    record(plan, tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as file:
        assert file["programs.program"].tolist() == [0]
        assert len(file["items.index"]) == 16
    assert len({item.shape_key() for _, _, item in work_items(plan)}) == 1


def test_do_parquet_rows_say_where_each_byte_is(tmp_path: Path) -> None:
    """The recipe of docs/trace-format.md: base[slot] + offset, `runs` times `run_bytes`, `pitch_bytes` apart."""
    plan = default_plan("flash2", heads=2, seq=200, dim=64, layout="bshd")
    record(plan, tmp_path / "t.parquet")
    ops = pq.read_table(tmp_path / "t.parquet", filters=[("table", "==", "ops")]).to_pylist()
    items = pq.read_table(tmp_path / "t.parquet", filters=[("table", "==", "items")]).to_pylist()
    written = np.zeros(plan.tensor("O").size_bytes, int)
    for item in items:
        for op in ops:
            if (op["program"], op["op"], op["tensor"]) == (item["program"], "Store", "O"):
                start = item["base"][op["slot"]] + op["offset"] - plan.tensor("O").base
                for run in range(op["runs"]):
                    written[start + run * op["pitch_bytes"] :][: op["run_bytes"]] += 1
    assert np.all(written == 1)


def test_does_the_documentation_name_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
    for table, columns in tracefile.TABLES.items():
        assert f"## `{table}`" in text
        section = text.split(f"## `{table}`")[1].split("\n## ")[0]
        assert [c for c in columns if f"`{c}`" not in section] == []


def test_is_progress_told_per_cta(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    record(
        default_plan("flash2", heads=2, seq=300), tmp_path / "t.npz", lambda done, total: calls.append((done, total))
    )
    assert calls == [(i, 6) for i in range(1, 7)]


def test_does_a_replayed_plan_refuse_to_compute(tmp_path: Path) -> None:
    plan = default_plan("flash2", heads=1, seq=64, dim=32)
    record(plan, tmp_path / "t.npz")
    with pytest.raises(ValueError, match="holds no numbers"):
        numeric.run(load_trace(tmp_path / "t.npz"), random_inputs(plan))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_does_a_failed_recording_leave_no_file(suffix: str, tmp_path: Path) -> None:
    plan = default_plan("flash2", heads=2, seq=64)

    def work(cta: int) -> list[WorkItem]:
        raise RuntimeError("no work")

    broken = dataclasses.replace(plan, launches=(dataclasses.replace(plan.launches[0], work=work),))
    with pytest.raises(RuntimeError, match="no work"):
        record(broken, tmp_path / f"t{suffix}")
    assert list(tmp_path.iterdir()) == []


def _refused(path: Path) -> str:
    """The sentence with which `load_trace` refuses a file."""
    with pytest.raises(ValueError) as refused:
        load_trace(path)
    message = str(refused.value)
    assert str(path) in message and "\n" not in message
    return message


def test_are_foreign_files_refused_in_a_sentence_that_names_them(tmp_path: Path) -> None:
    assert "does not exist" in _refused(tmp_path / "missing.npz")
    assert "must end in .parquet or .npz" in _refused(tmp_path / "trace.csv")
    with pytest.raises(ValueError, match=r"t\.csv must end in \.parquet or \.npz"):
        record(default_plan("flash2", seq=64), tmp_path / "t.csv")
    for suffix in SUFFIXES:
        for name, content in (("empty", b""), ("text", b"hello, world\n" * 9)):
            (tmp_path / f"{name}{suffix}").write_bytes(content)
            assert "is not a gpusim trace" in _refused(tmp_path / f"{name}{suffix}")
    np.savez(tmp_path / "foreign.npz", x=np.arange(3))
    np.savez(tmp_path / "objects.npz", strings=np.array([{}], object))
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "foreign.parquet")
    for name in ("foreign.npz", "objects.npz", "foreign.parquet"):
        assert "is not a gpusim trace" in _refused(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_is_a_truncated_trace_refused(suffix: str, tmp_path: Path) -> None:
    record(default_plan("flash2", seq=256), tmp_path / f"t{suffix}")
    content = (tmp_path / f"t{suffix}").read_bytes()
    (tmp_path / f"t{suffix}").write_bytes(content[: len(content) * 2 // 3])
    assert "is not a gpusim trace" in _refused(tmp_path / f"t{suffix}")


def _damage(path: Path, **members: object) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **(arrays | {name.replace("__", "."): np.asarray(x) for name, x in members.items()}))


def test_is_a_trace_that_contradicts_itself_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"

    def fresh() -> dict[str, np.ndarray]:
        record(default_plan("flash3", heads=2, seq=256), path)
        with np.load(path) as file:
            return {name.replace(".", "__"): file[name] for name in file.files}

    for column, change, said in (
        ("items__program", lambda x: x + 7, "names a program that is not in the file"),
        ("items__kernel", lambda x: x + 1, "names a kernel that is not in the header"),
        ("items__index", lambda x: x[::-1], "not in order"),
        ("items__index", lambda x: x + 100, "outside its launch"),
        ("items__item", lambda x: x + 1, "not numbered from 0"),
        ("items__base__length", lambda x: np.r_[x[0] + 1, x[1] - 1, x[2:]], "lacks a base"),
        ("programs__slot_bases", lambda x: x + 1, "pages of a slot do not hold its rows"),
        ("ops__program", lambda x: x - 1, "names a program that is not in the file"),
        ("ops__agent", lambda x: x + 9, "unknown agent"),
        ("ops__slot", lambda x: x + 9, "unknown slot"),
        ("ops__inputs", lambda x: x + 10**6, "value that no operation yields"),
        ("ops__offset", lambda x: x + 2, "not where its tile is"),
        ("programs__slot_tensor", lambda x: x + 50, "unknown tensor"),
        ("strings", lambda x: np.where(x == "Load", "Lode", x), "operation 'Lode' is unknown"),
    ):
        _damage(path, **{column: change(fresh()[column])})
        assert said in _refused(path), column

    header = json.loads(str(fresh()["header"]))
    for wrong, said in (
        ({"version": 99}, "is a trace of version 99"),
        ({"format": "other"}, "its header does not say"),
        ({"algorithm": "flash9"}, "algorithm 'flash9' is not one of"),
        ({"problem": {"dim": -1}}, "dim must be"),
        ({"tensors": [{}]}, "lacks 'dtype'"),
    ):
        _damage(path, header=json.dumps(header | wrong))
        assert said in _refused(path)


def test_does_a_value_that_is_read_before_it_exists_say_so(tmp_path: Path) -> None:
    """Such a program passes the check of the tables, so the fault shows when it runs."""

    class Nothing:
        def perform(self, agent: int, op: Op) -> object:
            return (0,) * 4 if getattr(op, "results", 1) == 4 else (0,) * 2

    path = tmp_path / "t.npz"
    record(default_plan("flash2", heads=1, seq=64), path)
    with np.load(path) as file:
        names = file["strings"][file["ops.op"]]
        starts = np.concatenate(([0], np.cumsum(file["ops.inputs.length"])))
        inputs, last = file["ops.inputs"].copy(), int(file["ops.token"].max())
    inputs[starts[np.flatnonzero(names == "Wait")[0]]] = last
    _damage(path, ops__inputs=inputs)
    launch = load_trace(path).launches[0]
    item = launch.work(0)[0]
    with pytest.raises(ValueError, match="before the operation that yields it"):
        run_agents(launch.agents(item.matrices(), item.parameters), Nothing(), BarrierState())


def _hinted_plan() -> Plan:
    """A plan whose loads all have a hint or go through the L1."""
    plan = default_plan("flash2", heads=2, seq=100)
    launch = plan.launches[0]

    def hinted(program: Program) -> Program:
        answer: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                op = program.send(answer)
                if isinstance(op, Load):
                    op = dataclasses.replace(op, hint="evict_last", through_l1=op.multicast == 1)
                answer = yield op

    def agents(*arguments: Any) -> tuple[Program, ...]:
        return tuple(hinted(program) for program in launch.agents(*arguments))

    return dataclasses.replace(plan, launches=(dataclasses.replace(launch, agents=agents), *plan.launches[1:]))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_do_hints_and_plain_loads_survive(suffix: str, tmp_path: Path) -> None:
    plan = _hinted_plan()
    record(plan, tmp_path / f"t{suffix}")
    replayed = load_trace(tmp_path / f"t{suffix}")
    item = next(iter(replayed.launches[0].work(0)))
    ops: list[Op] = []

    class Keeper:
        def perform(self, agent: int, op: Op) -> Any:
            ops.append(op)
            return (0,) * op.results if isinstance(op, Vector) and op.results > 1 else 0

    run_agents(replayed.launches[0].agents(item.matrices(), item.parameters), Keeper(), BarrierState())
    loads = [op for op in ops if isinstance(op, Load)]
    assert loads and all(op.hint == "evict_last" and op.through_l1 for op in loads)


def test_can_a_file_from_before_hints_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {t: {c: k for c, k in columns.items() if c not in tracefile.LATER_COLUMNS} for t, columns in TABLES.items()}
    plan = default_plan("flash3", heads=2, seq=100)  # which has nothing in those columns
    for suffix in SUFFIXES:
        with monkeypatch.context() as patch:
            patch.setattr(tracefile, "TABLES", older)
            record(plan, tmp_path / f"t{suffix}")
        _assert_same(plan, load_trace(tmp_path / f"t{suffix}"))
