"""Where the rows of each sequence lie in a tensor.

Sequences of one length have a batch entry each. Sequences of unequal lengths are packed, as in FlashAttention's varlen
interface: tensors [1, heads, total rows, dim], where sequence b has rows cu_seqlens[b] up to cu_seqlens[b + 1].
"""

from __future__ import annotations

from itertools import accumulate

from traces.problem import AttentionProblem
from traces.tensor import Tensor, View


class SequenceRows:
    """Rows of every sequence in tensors [`batch`, heads, `rows`, …].

    Args:
        batch: sequences.
        length: rows of each, where `lengths` is empty.
        lengths: rows of each sequence of a packed batch.

    Attributes:
        batch, rows: shape of the tensors; (1, total rows) when packed.
    """

    def __init__(self, batch: int, length: int, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths
        # An empty sequence starts at 0: behind the last row there may be no memory to bind a view to.
        self._starts = [end - own if own else 0 for own, end in zip(lengths, accumulate(lengths), strict=True)]
        self.batch, self.rows = (1, sum(lengths)) if lengths else (batch, length)

    def view(self, tensor: Tensor, sequence: int, head: int) -> View:
        """All rows of one head of one sequence."""
        if not self._lengths:
            return tensor.view(sequence, head)
        return tensor.view(0, head).window(self._starts[sequence], self._lengths[sequence])

    def place(self, sequence: int) -> tuple[int, slice]:
        """(batch entry, rows) of a sequence in the tensors."""
        if not self._lengths:
            return sequence, slice(0, self.rows)
        return 0, slice(self._starts[sequence], self._starts[sequence] + self._lengths[sequence])

    def columns(self, tensor: Tensor, sequence: int, head: int) -> View:
        """The same of a tensor that has one number per row, [batch, heads, 1, rows] (LSE)."""
        if not self._lengths:
            return tensor.view(sequence, head)
        return tensor.view(0, head).window(0, 1, self._starts[sequence], self._lengths[sequence])


def query_rows(problem: AttentionProblem) -> SequenceRows:
    """Rows of Q, O and what goes with them."""
    return SequenceRows(problem.batch, problem.seq, problem.lengths)


def key_rows(problem: AttentionProblem) -> SequenceRows:
    """Rows of K and V."""
    return SequenceRows(problem.batch, problem.seq_kv, problem.kv_lengths)
