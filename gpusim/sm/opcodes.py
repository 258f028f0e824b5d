"""Compiled tile operations: the columns of the operation table."""

from __future__ import annotations

LOAD, WAIT, MATMUL, VECTOR, STORE, ARRIVE, AWAIT, REDUCE = range(8)
"""Operation codes (column CODE)."""

CODE, SLOT, OFFSET, RUNS, RUN_BYTES, PITCH, TOKEN, SHARE, SHARES, SHARED_READ, SHARED_WRITE, FLOPS = range(12)
A_SLOT, A_SECTORS, B_SLOT, B_SECTORS, FLAGS, BASE, PAGE_BYTES, BY_WARPS = range(12, 20)
"""Integer columns. SLOT: view slot (LOAD, STORE, REDUCE) or barrier (ARRIVE, AWAIT). OFFSET: bytes from the view's
address. BASE: column of the item row with the view's (first) address. PAGE_BYTES: of each page of a stacked view;
else 0. TOKEN: what an asynchronous operation completes, or what WAIT and ARRIVE wait for (-1: nothing); RUNS is 1
there if that is a copy. TOKEN of STORE and REDUCE: 1 for a bulk copy (TMA), behind which the agent goes on.
SHARED_*: sectors of shared-memory traffic. FLOPS: tensor-core operations executed. A_*,
B_*: of SHARED_READ, what a product fetches of tiles that were loaded from a view, by view slot. FLAGS: hint of a
LOAD, and whether it goes through the L1 (see `gpusim.memory.access.read_tile`); of a REDUCE, 1 by fragments. BY_WARPS
of LOAD: 1 if warps ask for it, whose stores and loads take turns to leave the SM; TMA has a way of its own."""
INT_COLUMNS = 20

TENSOR_CYCLES, VECTOR_CYCLES, LATENCY_CYCLES, SHARED_CYCLES, LATER_PART = range(5)
COPY_CYCLES = VECTOR_CYCLES  # of a LOAD
FRAGMENT_CYCLES = VECTOR_CYCLES  # of a MATMUL
"""Float columns: cycles that the operation occupies the tensor cores or the vector pipes, latency that it adds to
its agent without occupying anything, cycles that its data take through the shared-memory pipe, and the share of row
work that runs under what the agent does next. COPY_CYCLES: cycles for the load/store unit to take a copy.
FRAGMENT_CYCLES: cycles that a product's own warps wait for operands to be in their registers, while others multiply."""
FLOAT_COLUMNS = 5

TOKENS = 64
"""Asynchronous operations that one agent may have in flight."""
BARRIERS = 64
"""Barriers of one CTA."""
PHASES = 4
"""Completion times kept per barrier: how far arrivals may run ahead of a waiting agent."""

NEXT_ITEM = -2
"""What an agent is blocked on when it waits for a persistent CTA's next work item."""
ITEM_RING = 16
"""Work items of a persistent CTA that are remembered at first; more when its agents are further apart."""
