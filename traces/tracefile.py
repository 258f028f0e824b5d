"""Trace files: three streamed tables and a JSON header, as Parquet or as NumPy's .npz.

`programs` has one row per distinct program, `ops` one per operation of it, `items` one per work item of a CTA, which
names its program and the addresses the program is bound to. docs/trace-format.md describes them for readers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FORMAT = "gpusim-trace"
VERSION = 1
ROWS_PER_GROUP = 1 << 16
"""Rows of a table that are held in memory before they are written."""

Kind = Literal["int", "text", "ints"]
Ints = NDArray[np.int64]

TABLES: dict[str, dict[str, Kind]] = {
    "programs": {
        "program": "int",
        "kernel": "int",
        "agents": "int",
        "parameters": "ints",
        "slot_tensor": "ints",
        "slot_rows": "ints",
        "slot_cols": "ints",
        "slot_pitch_bytes": "ints",
        "slot_page_bytes": "ints",
        "slot_bases": "ints",
    },
    "ops": {
        "program": "int",
        "agent": "int",
        "op": "text",
        "token": "int",
        "results": "int",
        "inputs": "ints",
        "slot": "int",
        "tensor": "text",
        "offset": "int",
        "runs": "int",
        "run_bytes": "int",
        "pitch_bytes": "int",
        "row": "int",
        "rows": "int",
        "col": "int",
        "cols": "int",
        "multicast": "int",
        "share": "int",
        "hint": "text",
        "through_l1": "int",
        "m": "int",
        "n": "int",
        "k": "int",
        "transpose_b": "int",
        "a_in_registers": "int",
        "asynchronous": "int",
        "exps": "int",
        "instructions": "int",
        "shared_bytes": "int",
        "chain": "int",
        "parts": "int",
        "by_fragments": "int",
        "elementwise": "int",
        "barrier": "text",
        "barrier_count": "int",
        "open_phases": "int",
    },
    "items": {"kernel": "int", "index": "int", "item": "int", "program": "int", "base": "ints"},
}
"""Columns of each table: whole number, text, or a list of whole numbers. A column left out of a row is 0 or empty."""

LATER_COLUMNS = ("hint", "through_l1", "slot_page_bytes", "slot_bases", "chain", "parts", "by_fragments", "elementwise")
"""Columns that older files of this version lack; there they are 0 or empty."""

_EMPTY: dict[Kind, Any] = {"int": 0, "text": "", "ints": ()}


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column of lists: row i is values[starts[i]:starts[i + 1]]."""

    values: Ints
    starts: Ints

    def row(self, index: int) -> list[int]:
        return self.values[self.starts[index] : self.starts[index + 1]].tolist()


@dataclass(frozen=True, slots=True)
class Table:
    """One table read back, by kind of column."""

    ints: dict[str, Ints]
    texts: dict[str, list[str]]
    lists: dict[str, Ragged]


class _Container(Protocol):
    """Where full row groups go."""

    def append(self, table: str, columns: Mapping[str, list[Any]]) -> None: ...

    def close(self) -> None: ...


class TraceWriter:
    """Collects rows and hands them on in groups of `ROWS_PER_GROUP`."""

    def __init__(self, container: _Container) -> None:
        self._container = container
        self._rows: dict[str, dict[str, list[Any]]] = {t: {c: [] for c in columns} for t, columns in TABLES.items()}
        self._counts = dict.fromkeys(TABLES, 0)

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Append one row; columns it lacks are 0 or empty."""
        for column, kind in TABLES[table].items():
            self._rows[table][column].append(row.get(column, _EMPTY[kind]))
        self._counts[table] += 1
        if self._counts[table] == ROWS_PER_GROUP:
            self._flush(table)

    def close(self) -> None:
        for table in TABLES:
            self._flush(table)
        self._container.close()

    def _flush(self, table: str) -> None:
        if self._counts[table]:
            self._container.append(table, self._rows[table])
        self._rows[table] = {c: [] for c in TABLES[table]}
        self._counts[table] = 0


@contextmanager
def writing(path: Path, header: Mapping[str, Any]) -> Iterator[TraceWriter]:
    """A writer of a new trace file, which appears at `path` only once it is complete.

    Raises:
        ValueError: the ending is neither .parquet nor .npz.
    """
    text = json.dumps({"format": FORMAT, "version": VERSION, **header})
    suffix = _suffix(path)
    part = path.with_name(path.name + ".part")
    try:
        container: _Container = _ParquetOut(part, text) if suffix == ".parquet" else _NpzOut(part, text)
        try:
            writer = TraceWriter(container)
            yield writer
            writer.close()
        except BaseException:
            container.close()
            raise
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Table]]:
    """The header and the tables of a trace file.

    Raises:
        ValueError: no such file, or not a trace of this version; one sentence naming it.
    """
    suffix = _suffix(path)
    if not path.is_file():
        raise ValueError(f"trace file {path} does not exist")
    try:
        text, tables = _read_parquet(path) if suffix == ".parquet" else _read_npz(path)
        header = json.loads(text)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a gpusim trace file ({_first_line(error)})") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a gpusim trace file (its header does not say {FORMAT})")
    if header.get("version") != VERSION:
        raise ValueError(f"{path} is a trace of version {header.get('version')}, this program reads {VERSION}")
    return header, tables


def _suffix(path: Path) -> str:
    if path.suffix not in (".parquet", ".npz"):
        raise ValueError(f"trace file {path} must end in .parquet or .npz")
    return path.suffix


def _first_line(error: BaseException) -> str:
    """The start of a library's message, without the period that would end our sentence early."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class _ParquetOut:
    """One Parquet table of all columns, in which `table` says what a row is; a row group holds one kind."""

    def __init__(self, path: Path, header: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._types = {"int": pa.int64(), "text": pa.string(), "ints": pa.list_(pa.int64())}
        self._columns = {c: kind for columns in TABLES.values() for c, kind in columns.items()}
        fields = [("table", pa.string()), *((c, self._types[kind]) for c, kind in self._columns.items())]
        self._schema = pa.schema(fields, metadata={FORMAT: header})
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def append(self, table: str, columns: Mapping[str, list[Any]]) -> None:
        import pyarrow as pa

        count = len(next(iter(columns.values())))
        arrays = [pa.repeat(table, count)]
        for name, kind in self._columns.items():
            values = columns.get(name) or [_EMPTY[kind]] * count
            arrays.append(pa.array(values, self._types[kind]))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=count)

    def close(self) -> None:
        self._writer.close()


def _read_parquet(path: Path) -> tuple[str, dict[str, Table]]:
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    metadata = schema.metadata or {}
    text = metadata[FORMAT.encode()].decode()
    tables = {}
    for name, columns in TABLES.items():
        there = {c: kind for c, kind in columns.items() if c in schema.names or c not in LATER_COLUMNS}
        data = pq.read_table(path, columns=list(there), filters=[("table", "==", name)])
        table = Table({}, {}, {})
        for column, kind in there.items():
            values = data[column].combine_chunks()
            if kind == "int":
                table.ints[column] = values.to_numpy(zero_copy_only=False).astype(np.int64, casting="safe")
            elif kind == "text":
                table.texts[column] = values.to_pylist()
            else:
                flat = values.flatten().to_numpy(zero_copy_only=False).astype(np.int64, casting="safe")
                lengths = values.value_lengths().to_numpy(zero_copy_only=False)
                table.lists[column] = Ragged(flat, _starts(lengths))
        tables[name] = _completed(table, columns)
    return text, tables


def _completed(table: Table, columns: Mapping[str, Kind]) -> Table:
    """`table` with empty columns in place of those that an older program did not write."""
    count = len(next(iter(table.ints.values())))
    for column in LATER_COLUMNS:
        if columns.get(column) == "int":
            table.ints.setdefault(column, np.zeros(count, np.int64))
        elif columns.get(column) == "text":
            table.texts.setdefault(column, [""] * count)
        elif columns.get(column) == "ints":
            table.lists.setdefault(column, Ragged(np.zeros(0, np.int64), np.zeros(count + 1, np.int64)))
    return table


class _NpzOut:
    """An .npz of `TABLE.COLUMN` arrays. Columns grow in temporary files, so that only a row group is in memory."""

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        self._header = header
        self._spool = tempfile.TemporaryDirectory(prefix=path.name, dir=path.parent)
        self._files: dict[str, tuple[BinaryIO, np.dtype[Any]]] = {}
        self._strings: dict[str, int] = {}
        for table, columns in TABLES.items():
            for column, kind in columns.items():
                self._open(f"{table}.{column}", np.dtype(np.int32 if kind == "text" else np.int64))
                if kind == "ints":
                    self._open(f"{table}.{column}.length", np.dtype(np.int32))
        self._closed = False

    def _open(self, member: str, dtype: np.dtype[Any]) -> None:
        self._files[member] = (Path(self._spool.name) / member).open("w+b"), dtype

    def _write(self, member: str, values: Any) -> None:
        file, dtype = self._files[member]
        file.write(np.asarray(values, dtype).tobytes())

    def append(self, table: str, columns: Mapping[str, list[Any]]) -> None:
        for column, kind in TABLES[table].items():
            values, member = columns[column], f"{table}.{column}"
            if kind == "text":
                self._write(member, [self._strings.setdefault(v, len(self._strings)) for v in values])
            elif kind == "int":
                self._write(member, values)
            else:
                self._write(member, [x for row in values for x in row])
                self._write(f"{member}.length", [len(row) for row in values])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
            self._member(archive, "header", np.array(self._header))
            self._member(archive, "strings", np.array(list(self._strings), np.str_))
            for member, (file, dtype) in self._files.items():
                count = file.tell() // dtype.itemsize
                file.seek(0)
                with archive.open(f"{member}.npy", "w", force_zip64=True) as out:
                    shape = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
                    np.lib.format.write_array_header_1_0(out, shape)
                    shutil.copyfileobj(file, out)
                file.close()
        self._spool.cleanup()

    @staticmethod
    def _member(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
        with archive.open(f"{name}.npy", "w") as out:
            np.lib.format.write_array(out, array, allow_pickle=False)


def _read_npz(path: Path) -> tuple[str, dict[str, Table]]:
    tables = {}
    with np.load(path, allow_pickle=False) as archive:
        strings = archive["strings"].tolist()
        for name, columns in TABLES.items():
            table = Table({}, {}, {})
            for column, kind in columns.items():
                if column in LATER_COLUMNS and f"{name}.{column}" not in archive:
                    continue
                values = archive[f"{name}.{column}"]
                if kind == "int":
                    table.ints[column] = values.astype(np.int64, casting="safe")
                elif kind == "text":
                    if values.size and not 0 <= values.min() <= values.max() < len(strings):
                        raise ValueError(f"{name}.{column} points outside strings")
                    table.texts[column] = [strings[code] for code in values.tolist()]
                else:
                    starts = _starts(archive[f"{name}.{column}.length"])
                    table.lists[column] = Ragged(values.astype(np.int64, casting="safe"), starts)
            tables[name] = _completed(table, columns)
        return str(archive["header"]), tables


def _starts(lengths: NDArray[Any]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
