"""Row softmax on tiles: the numeric steps shared by the algorithms, and what they cost on the CUDA cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

NO_MASK = 1 << 40
"""Diagonal of an unmasked tile: every key is visible."""

ONLINE_INSTRUCTIONS = 6
"""fp32 instructions per score of an online-softmax step: scale-and-subtract, max, sum, convert, shuffle share."""


def mask_scores(scores: Array, first_key: int, diagonal: int, window: int = 0) -> Array:
    """Set scores of hidden keys to -inf: local row r sees key j iff r + `diagonal` - `window` < j <= r + `diagonal`.

    Without a window (0) it sees every key up to its diagonal.
    """
    rows, keys = scores.shape
    past_diagonal = first_key + np.arange(keys)[None, :] - np.arange(rows)[:, None] - diagonal
    visible = (past_diagonal <= 0) & (past_diagonal > -window) if window else past_diagonal <= 0
    return np.where(visible, scores, np.float32(-np.inf)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class RowMask:
    """What a few whole rows of scores see, in a batch that is padded to one length.

    Attributes:
        diagonal, window: as for `mask_scores`.
        rows: rows that are not padding; rows from here on see nothing.
        keys: keys that are not padding.
    """

    diagonal: int
    window: int
    rows: int
    keys: int

    def apply(self, scores: Array, first_key: int) -> Array:
        """Set hidden scores to -inf; column 0 of `scores` is key `first_key`."""
        rows, columns = scores.shape
        real = (np.arange(rows)[:, None] < self.rows) & (first_key + np.arange(columns)[None, :] < self.keys)
        masked = mask_scores(scores, first_key, self.diagonal, self.window)
        return np.where(real, masked, np.float32(-np.inf)).astype(np.float32)


def row_softmax(scores: Array) -> Array:
    """Softmax of each row; a row with no visible key gives zeros, never NaN."""
    maximum = np.max(scores, axis=1, keepdims=True, initial=-np.inf)
    shifted = np.exp(scores - np.where(np.isfinite(maximum), maximum, 0), dtype=np.float32)
    total = shifted.sum(axis=1, keepdims=True, dtype=np.float32)
    return (shifted / np.where(total > 0, total, 1)).astype(np.float32)


def online_scores(scores: Array, maximum: Array, total: Array) -> tuple[Array, Array, Array, Array]:
    """One step of the online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3).

    Args:
        scores: scaled and masked scores of this block, [rows, keys].
        maximum, total: running row maximum and row sum, [rows, 1].

    Returns:
        (P, new maximum, new total, decay): earlier un-normalised output must be multiplied by `decay`.
    """
    new_max = np.maximum(maximum, np.max(scores, axis=1, keepdims=True, initial=-np.inf))
    safe = np.where(np.isfinite(new_max), new_max, 0).astype(np.float32)
    p = np.exp(scores - safe, dtype=np.float32)
    decay = np.exp(maximum - safe, dtype=np.float32)
    new_total = total * decay + p.sum(axis=1, keepdims=True, dtype=np.float32)
    return p, new_max, new_total.astype(np.float32), decay


def online_step(scores: Array, maximum: Array, total: Array, output: Array) -> tuple[Array, Array, Array, Array]:
    """`online_scores` with the output rescaled at once (FlashAttention-2, algorithm 1, lines 8-10)."""
    p, new_max, new_total, decay = online_scores(scores, maximum, total)
    return p, new_max, new_total, (output * decay).astype(np.float32)


def probabilities(scores: Array, maximum: Array, total: Array) -> Array:
    """Weights of masked scores, given their row's maximum and its sum of exponentials; zeros in an empty row."""
    safe = np.where(np.isfinite(maximum), maximum, 0).astype(np.float32)
    return (np.exp(scores - safe, dtype=np.float32) / np.where(total > 0, total, 1)).astype(np.float32)


def finish(maximum: Array, total: Array, output: Array) -> tuple[Array, Array]:
    """Normalised output and log-sum-exp; an empty row gives O = 0 and LSE = -inf."""
    safe_total = np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.where(np.isfinite(maximum), maximum, 0) + np.log(safe_total), -np.inf)
    return (output / safe_total).astype(np.float32), lse.astype(np.float32)
