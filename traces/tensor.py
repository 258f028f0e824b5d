"""Tensors with real addresses, the matrices programs see, and the tiles they touch.

A program never sees an address: it is written over `Matrix` handles (shape only), and a launch binds each handle to a
`View` (a rectangle of one head of a `Tensor`, with its byte address and row pitch). So two CTAs whose matrices have
the same shapes run the same program at other addresses, which is what lets the simulator compile a program once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.dtypes import DType

ALIGNMENT_BYTES = 2 << 20
"""Base addresses are multiples of 2 MiB, as from a caching allocator over CUDA's 2 MiB pages."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A 4-D tensor [batch, heads, rows, cols] at a fixed byte address.

    Attributes:
        name: the name traffic is accounted under (`Q`, `K`, `S`, ...).
        index: position among the tensors of an algorithm.
        base: byte address of element 0, a multiple of `ALIGNMENT_BYTES`.
        layout: `bhsd` (rows of a head contiguous) or `bshd` (heads interleaved by row).
    """

    name: str
    index: int
    batch: int
    heads: int
    rows: int
    cols: int
    dtype: DType
    layout: str
    base: int

    @property
    def size_bytes(self) -> int:
        return self.batch * self.heads * self.rows * self.cols * self.dtype.element_bytes

    @property
    def end(self) -> int:
        """First byte address past the tensor."""
        return self.base + self.size_bytes

    def view(self, batch: int, head: int) -> View:
        """All rows and columns of one head."""
        row_bytes = self.cols * self.dtype.element_bytes
        if self.layout == "bhsd":
            pitch = row_bytes
            address = self.base + (batch * self.heads + head) * self.rows * row_bytes
        else:
            pitch = self.heads * row_bytes
            address = self.base + (batch * self.rows * self.heads + head) * row_bytes
        return View(self, batch, head, 0, 0, self.rows, self.cols, address, pitch)


@dataclass(frozen=True, slots=True)
class View:
    """A rectangle of one head of a tensor: `rows` x `cols` at `address`, rows `pitch_bytes` apart.

    Attributes:
        row, col: where in the head the rectangle starts.
    """

    tensor: Tensor
    batch: int
    head: int
    row: int
    col: int
    rows: int
    cols: int
    address: int
    pitch_bytes: int

    def window(self, row: int, rows: int, col: int = 0, cols: int | None = None) -> View:
        """The part of this view starting at (`row`, `col`), clipped to it."""
        kept_rows = max(0, min(rows, self.rows - row))
        kept_cols = max(0, min(self.cols if cols is None else cols, self.cols - col))
        address = self.address + row * self.pitch_bytes + col * self.tensor.dtype.element_bytes
        place = (self.row + row, self.col + col)
        return View(self.tensor, self.batch, self.head, *place, kept_rows, kept_cols, address, self.pitch_bytes)

    def shape_key(self) -> tuple[int, int, int, int, int]:
        """Everything a compiled program depends on except the address."""
        return self.tensor.index, self.rows, self.cols, self.pitch_bytes, self.tensor.dtype.element_bytes


@dataclass(frozen=True, slots=True)
class Matrix:
    """A program's handle on the view bound to `slot`: shape and format, no address."""

    slot: int
    name: str
    rows: int
    cols: int
    dtype: DType

    def tile(self, row: int, rows: int, col: int = 0, cols: int | None = None) -> Tile:
        """The tile at (`row`, `col`), clipped to the matrix (so a ragged last tile has fewer rows)."""
        last_row = min(row + rows, self.rows)
        last_col = self.cols if cols is None else min(col + cols, self.cols)
        return Tile(self, row, max(0, last_row - row), col, max(0, last_col - col))


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of a matrix: what one load or store moves."""

    matrix: Matrix
    row: int
    rows: int
    col: int
    cols: int

    @property
    def row_bytes(self) -> int:
        return self.cols * self.matrix.dtype.element_bytes

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes

    def span(self, view: View) -> tuple[int, int, int]:
        """(byte offset in the view, number of runs, bytes per run); runs are `view.pitch_bytes` apart.

        Rows that follow each other in memory without a gap make a single run.
        """
        offset = self.row * view.pitch_bytes + self.col * self.matrix.dtype.element_bytes
        if view.pitch_bytes == self.row_bytes:
            return offset, 1, self.size_bytes
        return offset, self.rows, self.row_bytes


class TensorTable:
    """Allocates tensors one after another, each at its own aligned base address, behind those there already are."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self._tensors = list(tensors)
        self._next = -(-max((t.end for t in tensors), default=1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def add(self, name: str, shape: tuple[int, int, int, int], dtype: DType, layout: str = "bhsd") -> Tensor:
        """Allocate `shape` = (batch, heads, rows, cols); the name must be new."""
        if any(t.name == name for t in self._tensors):
            raise ValueError(f"tensor {name!r} is allocated twice")
        tensor = Tensor(name, len(self._tensors), *shape, dtype, layout, self._next)
        self._tensors.append(tensor)
        self._next += -(-max(tensor.size_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self._tensors)
