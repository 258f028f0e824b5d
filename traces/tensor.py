"""Tensors with real addresses, the matrices programs see, and the tiles they touch.

A program never sees an address: it is written over `Matrix` handles (shape only), and a launch binds each handle to a
`View` (a rectangle of one head of a `Tensor`, with its byte address and row pitch), or to a `StackedView` (equal
rectangles one below the other, wherever they lie: the pages of a KV cache). So two CTAs whose matrices have the same
shapes run the same program at other addresses, which is what lets the simulator compile a program once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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

    def place(self, address: int) -> tuple[int, int, int, int]:
        """(batch, head, row, column) of the element at `address`."""
        rest, col = divmod((address - self.base) // self.dtype.element_bytes, self.cols)
        if self.layout == "bhsd":
            rest, row = divmod(rest, self.rows)
            batch, head = divmod(rest, self.heads)
        else:
            rest, head = divmod(rest, self.heads)
            batch, row = divmod(rest, self.rows)
        return batch, head, row, col


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

    @property
    def page_bytes(self) -> int:
        """0: all rows follow from one address."""
        return 0

    @property
    def addresses(self) -> tuple[int, ...]:
        """The one address, as `StackedView` has several."""
        return (self.address,)

    def at(self, offset: int) -> int:
        """Address of the byte at `offset`."""
        return self.address + offset

    def index(self, row: int, rows: int, col: int, cols: int) -> tuple[Any, ...]:
        """Where this part of the view is in an array [batch, heads, rows, cols] of the tensor."""
        row, col = self.row + row, self.col + col
        return self.batch, self.head, slice(row, row + rows), slice(col, col + cols)

    def moved(self, to: Tensor) -> View:
        """The same rectangle of another tensor of the same shape."""
        return replace(self, tensor=to, address=self.address - self.tensor.base + to.base)

    def shape_key(self) -> tuple[int, ...]:
        """Everything a compiled program depends on except the address."""
        return self.tensor.index, self.rows, self.cols, self.pitch_bytes, self.tensor.dtype.element_bytes


@dataclass(frozen=True, slots=True)
class StackedView:
    """The rows of equal rectangles of a tensor, one below the other: pages of a KV cache, query heads of a group.

    Offsets are those of rows `pitch_bytes` apart, as in a `View`, and are translated page by page: the byte at offset x
    lies at `addresses[x // page_bytes] + x % page_bytes`.

    Attributes:
        addresses: where each rectangle (page) starts.
        page_rows: rows of each.
        rows: rows in all; the last page may be used in part.
    """

    tensor: Tensor
    addresses: tuple[int, ...]
    page_rows: int
    rows: int
    cols: int
    pitch_bytes: int

    @property
    def page_bytes(self) -> int:
        """Offsets from one page to the next."""
        return self.page_rows * self.pitch_bytes

    def at(self, offset: int) -> int:
        """Address of the byte at `offset`."""
        page, within = divmod(offset, self.page_bytes)
        return self.addresses[page] + within

    def moved(self, to: Tensor) -> StackedView:
        """The same rectangles of another tensor of the same shape."""
        addresses = tuple(address - self.tensor.base + to.base for address in self.addresses)
        return replace(self, tensor=to, addresses=addresses)

    def index(self, row: int, rows: int, col: int, cols: int) -> tuple[Any, ...]:
        """Where this part of the view is in an array [batch, heads, rows, cols] of the tensor."""
        places = [self.tensor.place(self.at(r * self.pitch_bytes)) for r in range(row, row + rows)]
        first = places[0][3] + col if places else col
        return *([place[axis] for place in places] for axis in range(3)), slice(first, first + cols)

    def shape_key(self) -> tuple[int, ...]:
        """Everything a compiled program depends on except the addresses."""
        shape = self.tensor.index, self.rows, self.cols, self.pitch_bytes, self.tensor.dtype.element_bytes
        return *shape, self.page_rows, len(self.addresses)


AnyView = View | StackedView


def stacked(views: Sequence[View]) -> StackedView:
    """Equal views of one tensor as a single matrix, in the order given; one page where all follow each other."""
    first, rows = views[0], len(views) * views[0].rows
    addresses, step = tuple(view.address for view in views), first.rows * first.pitch_bytes
    if all(address == addresses[0] + number * step for number, address in enumerate(addresses)):
        return StackedView(first.tensor, addresses[:1], rows, rows, first.cols, first.pitch_bytes)
    return StackedView(first.tensor, addresses, first.rows, rows, first.cols, first.pitch_bytes)


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

    def span(self, view: AnyView) -> tuple[int, int, int, int]:
        """(byte offset in the view, number of runs, bytes per run, bytes from one run to the next).

        Rows that follow each other in memory without a gap make one run; on pages, as many as fit all pages evenly. Run
        i of a tile starts at `view.at(offset + i * pitch)`, with the last of the four as pitch.
        """
        pitch = view.pitch_bytes
        together = 1
        if pitch == self.row_bytes:
            together = math.gcd(view.page_rows, self.row, self.rows) if isinstance(view, StackedView) else self.rows
            together = together or 1
        offset = self.row * pitch + self.col * self.matrix.dtype.element_bytes
        return offset, self.rows // together, together * self.row_bytes, together * pitch


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
