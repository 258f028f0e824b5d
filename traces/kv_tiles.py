"""Tiles of K and V in whatever format they are cached: what a program does to read one, and what that moves.

A quantised tile is copied as it is stored, with its scales (and the outlier channels of K), and dequantised in shared
memory to the format of Q, which the tensor cores then read. So a program that reads its tiles through a `KvSource`
computes on fp16 numbers whatever lies in HBM:

    k = KvSource("K", matrices, problem)
    loading = yield from k.load(row, rows)      # starts the copies
    k_tile = yield from k.ready(loading)        # waits for them and dequantises

Scales and outliers are head-major whatever the layout of K and V, so that those of a tile are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.dtypes import DTYPES
from traces.ops import Load, Op, Vector, Wait
from traces.problem import AttentionProblem
from traces.quantise import Array, dequantise, scale_shape, with_outliers
from traces.tensor import AnyView, Matrix, Tensor, TensorTable, Tile

DEQUANTISE_INSTRUCTIONS_PER_4 = {
    ("fp8", "fp16"): 2 + 2,  # cvt.rn.f16x2.e4m3x2, HMUL2
    ("int8", "fp16"): 1 + 2 + 2 + 2,  # LOP3 to unsigned, PRMT under the exponent of 1024, HADD2, HMUL2
    ("fp8", "bf16"): 2 + 4 + 2 + 2,  # as for fp16, widen to fp32, cvt.rn.bf16x2.f32, HMUL2.BF16
    ("int8", "bf16"): 1 + 4 + 4 + 2 + 2,  # LOP3, PRMT under the exponent of 2^23, FADD, cvt.rn.bf16x2.f32, HMUL2.BF16
    ("fp8", "fp32"): 2 + 4 + 4,  # cvt.rn.f16x2.e4m3x2, widen, FMUL
    ("int8", "fp32"): 1 + 4 + 4 + 4,  # LOP3, PRMT, FADD, FMUL
}
"""Instructions per lane for four elements: conversion, then the product with the scale, packed where the format is.

fp8 converts two at a time (PTX ISA, cvt, sm_89 and later). int8 has no such instruction; the shortest way sets the
bytes into the mantissa of a large number and subtracts that (Kim et al. 2022, arXiv:2211.10017, section 4)."""


CACHE = ("K", "V", "KV")
"""Names that the tensors of a cache may have; KV is a latent that is both."""
BESIDE = ("K_scale", "K_outliers", "K_outlier_index", "V_scale")
"""Names of all tensors that `Dequantisation` may have."""

SCALE_BYTES, INDEX_BYTES = DTYPES["fp32"].element_bytes, DTYPES["int32"].element_bytes


class Dequantisation:
    """The tensors beside K and V that dequantise them: `K_scale`, `K_outliers`, `K_outlier_index`, `V_scale`.

    None for a cache that is not quantised. What there is per token lies as the tokens of K and V do, in tensors
    [`batch`, KV heads, `rows`, …]; scales per channel or head are those of a sequence, outlier channels those of a KV
    head in all sequences.

    Attributes:
        tensors: in address order.
    """

    def __init__(self, table: TensorTable, problem: AttentionProblem, batch: int, rows: int) -> None:
        p = self._problem = problem
        self.tensors: list[Tensor] = []
        for name, dim in (("K", p.dim), ("V", p.dim_v)):
            if not p.dequantises(name):
                continue
            of = batch if p.kv_scale == "token" else p.batch
            shape = (of, p.kv_heads, *scale_shape(p.kv_scale, rows, dim))
            self.tensors.append(table.add(f"{name}_scale", shape, DTYPES["fp32"]))
            if name == "K" and p.outlier_channels:
                of_k = (batch, p.kv_heads, rows, p.outlier_channels)
                self.tensors.append(table.add("K_outliers", of_k, p.storage))
                index = (1, p.kv_heads, 1, p.outlier_channels)
                self.tensors.append(table.add("K_outlier_index", index, DTYPES["int32"]))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, inputs of a plan after Q, K and V."""
        return tuple(t.name for t in self.tensors)

    def views(self, sequence: int, kv_head: int, tokens: Callable[[Tensor], AnyView]) -> tuple[AnyView, ...]:
        """What dequantises some tokens of a head; `tokens` gives those of a tensor that has a row for each."""
        return tuple(
            tokens(t) if _per_token(t.name, self._problem) else t.view(min(sequence, t.batch - 1), kv_head)
            for t in self.tensors
        )


@dataclass(frozen=True, slots=True)
class Loading:
    """A tile under way: `parts` are the values that make it up, `copies` those of them that this tile waits for."""

    tile: Tile
    parts: tuple[Any, ...]
    copies: tuple[Any, ...]


class KvSource:
    """K or V of one head, as a program reads it.

    Args:
        name: K or V.
        matrices: the program's; that called `name` and those that dequantise it are found by their names.
        problem: what is computed.
        in_registers: whether tiles are dequantised on the way from shared memory to the tensor cores, and not back into
            shared memory. What the products then read there is still counted as numbers of Q's format, not as codes.

    Tiles must be awaited in the order in which they were loaded: what all tiles share comes with the first.
    """

    def __init__(
        self, name: str, matrices: Sequence[Matrix], problem: AttentionProblem, in_registers: bool = False
    ) -> None:
        of = {m.name: m for m in matrices}
        beside = [of[n] for n in BESIDE if n in of and n.startswith(f"{name}_")]
        self._codes, self._beside, self._problem = of[name], beside, problem
        self._shared: dict[str, Any] = {}
        self._in_registers = in_registers

    def load(self, row: int, rows: int) -> Generator[Op, Any, Loading]:
        """Start copying the tile of `rows` rows from `row`, and what dequantises it; gives what `ready` takes."""
        tile = self._codes.tile(row, rows)
        parts = [(yield Load(tile))]
        copies = list(parts)
        for m in self._beside:
            if m.name in self._shared:
                parts.append(self._shared[m.name])
                continue
            value = yield Load(m.tile(row, rows) if _per_token(m.name, self._problem) else m.tile(0, m.rows))
            if not _per_token(m.name, self._problem):
                self._shared[m.name] = value
            parts.append(value)
            copies.append(value)
        return Loading(tile, tuple(parts), tuple(copies))

    def ready(self, loading: Loading) -> Generator[Op, Any, Any]:
        """Wait for the copies that `load` started, then dequantise; gives the tile in the format of Q."""
        for value in loading.copies:
            yield Wait(value)
        if not self._beside:
            return loading.parts[0]
        storage, tile = self._problem.storage, loading.tile

        def whole(codes: Array, scale: Array, *outliers: Array) -> Array:
            dense = dequantise(codes, scale, storage)
            return with_outliers(dense, outliers[0], outliers[1].astype(np.int64)) if outliers else dense

        elements = tile.rows * tile.cols
        per_4 = DEQUANTISE_INSTRUCTIONS_PER_4[tile.matrix.dtype.name, storage.name]
        outliers = tile.rows * self._beside[1].cols if len(self._beside) > 1 else 0  # one move each
        # Codes are read from shared memory and the tile is written back to it, where the tensor cores find operands.
        moved = 0 if self._in_registers else elements * (tile.matrix.dtype.element_bytes + storage.element_bytes)
        work = -(-elements * per_4 // 4) + outliers
        return (yield Vector(whole, loading.parts, instructions=work, shared_bytes=moved, elementwise=True))


def kv_shared_bytes(problem: AttentionProblem, tile_kv: int, stages: int, in_registers: bool = False) -> int:
    """Shared memory of a CTA for `stages` tiles each of K and V as stored, and one of each dequantised.

    Where they are dequantised `in_registers`, there are only the tiles as stored and, if per token, their scales.
    """
    p = problem
    total = 0
    for name, code, dim in (("K", p.kv_storage, p.dim), ("V", p.v_storage, p.dim_v)):
        total += stages * tile_kv * dim * code.element_bytes
        if not p.dequantises(name):
            continue
        outliers = p.outlier_channels if name == "K" else 0
        rows, cols = scale_shape(p.kv_scale, tile_kv, dim)
        if in_registers:
            total += stages * (tile_kv * SCALE_BYTES if p.kv_scale == "token" else 0)
            total += stages * tile_kv * outliers * p.storage.element_bytes
            continue
        scale_copies = stages if p.kv_scale == "token" else 1
        total += tile_kv * dim * p.storage.element_bytes + scale_copies * rows * cols * SCALE_BYTES
        total += outliers * (stages * tile_kv * p.storage.element_bytes + INDEX_BYTES)
    return total


def kv_bytes(tensors: Sequence[Tensor], problem: AttentionProblem, keys: int, readers: int) -> dict[str, int]:
    """Bytes that `KvSource` moves of K, V and what dequantises them, by tensor; other tensors are passed over.

    Args:
        keys: tokens read, over all programs.
        readers: programs that read at least one.
    """
    moved = {}
    for t in tensors:
        if t.name in CACHE or t.name in BESIDE:
            per_token = t.name in CACHE or _per_token(t.name, problem)
            moved[t.name] = (keys if per_token else readers * t.rows) * t.cols * t.dtype.element_bytes
    return moved


def _per_token(name: str, problem: AttentionProblem) -> bool:
    """Whether a tensor of `Dequantisation` has a row for every token."""
    return name == "K_outliers" or (name.endswith("_scale") and problem.kv_scale == "token")
