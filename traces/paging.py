"""Block tables of a paged KV cache (Kwon et al. 2023, "PagedAttention", arXiv:2309.06180)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traces.problem import AttentionProblem
from traces.traffic import blocks


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Where the pages of each sequence are.

    Attributes:
        page_size: tokens per page.
        page_count: pages in memory.
        lengths: tokens of each sequence.
        pages: per sequence, the physical page of its tokens [i page_size, (i + 1) page_size).

    Raises:
        ValueError: a page that does not exist, or more tokens than a sequence has pages for.
    """

    page_size: int
    page_count: int
    lengths: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")
        if len(self.lengths) != len(self.pages):
            raise ValueError(f"block table has {len(self.pages)} sequences but there are {len(self.lengths)} lengths")
        for sequence, (length, pages) in enumerate(zip(self.lengths, self.pages, strict=True)):
            if not 0 <= length <= len(pages) * self.page_size:
                raise ValueError(
                    f"sequence {sequence} has {length} tokens, but its block table has {len(pages)} pages "
                    f"of {self.page_size}"
                )
            for page in pages:
                if not 0 <= page < self.page_count:
                    raise ValueError(
                        f"block table of sequence {sequence} names page {page}, but there are {self.page_count} pages"
                    )

    @property
    def width(self) -> int:
        """Pages of the longest sequence: columns of the table in memory."""
        return max(1, max(map(len, self.pages), default=0))

    def array(self) -> NDArray[np.int32]:
        """The table as it lies in memory, [sequences, width]; unused entries are 0."""
        table = np.zeros((len(self.pages), self.width), np.int32)
        for sequence, pages in enumerate(self.pages):
            table[sequence, : len(pages)] = pages
        return table


def block_table(problem: AttentionProblem, seed: int = 0) -> BlockTable:
    """Pages for a problem's sequences, in a random order as on a server after a while.

    The pages that the first `problem.prefix` tokens fill are the same for all sequences; a page that they fill in part
    is each sequence's own.
    """
    p, size = problem, problem.page_size
    lengths = tuple(p.keys(b) for b in range(p.batch))
    shared = p.prefix // size
    own = [blocks(length, size) - shared for length in lengths]
    count = shared + sum(own)
    order = np.random.default_rng(seed).permutation(count).tolist()
    starts = np.cumsum([shared, *own]).tolist()
    pages = tuple((*order[:shared], *order[a:b]) for a, b in pairwise(starts))
    return BlockTable(size, max(1, count), lengths, pages)
