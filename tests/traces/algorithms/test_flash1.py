"""FlashAttention-1: schedules to draw for the tests that every algorithm takes, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from traces.algorithms import flash1
from traces.analytic import compulsory_bytes, sm_port_bytes, textbook
from traces.launch import Plan
from traces.problem import AttentionProblem

REWRITTEN = ("O_running", "LSE")


def _schedules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tile_q": st.sampled_from((16, 48, 64)),
            "tile_kv": st.sampled_from((16, 24, 64, 128)),
            "stages": st.integers(1, 3),
            "warps": st.sampled_from((1, 4, 8)),
        }
    )


SCHEDULES = _schedules()


def _plan(sram_bytes: int = 0, **problem: Any) -> Plan:
    """The default plan, or one with the paper's tiles for an SRAM (their rows rounded to what the schedule takes)."""
    p = AttentionProblem(**problem)
    schedule = flash1.default_schedule(p, "mma_sync", 108)
    if sram_bytes:
        rows, keys = flash1.paper_tiles(sram_bytes, p.dim, p.storage.element_bytes)
        schedule = schedule.changed({"tile_q": -(-rows // 16) * 16, "tile_kv": -(-keys // 8) * 8})
    return flash1.plan(p, schedule)


def test_do_q_and_the_running_output_pass_once_per_key_block() -> None:
    plan = _plan(batch=2, heads=3, seq=1024, dim=64)  # Bc = 256: four passes
    one = 2 * 3 * 1024 * 64
    assert sm_port_bytes(plan) == {
        "Q": (4 * 2 * one, 0),
        "K": (2 * one, 0),
        "V": (2 * one, 0),
        "O_running": (3 * 4 * one, 3 * 4 * one),
        "O": (0, 2 * one),
        "LSE": (3 * 4 * one // 64, 4 * 4 * one // 64),
    }


def test_is_the_running_output_of_fp32_left_out_with_a_single_key_block() -> None:
    assert _plan(heads=1, seq=512, dim=64).tensor("O_running").dtype.element_bytes == 4
    assert "O_running" not in {t.name for t in _plan(heads=1, seq=512, seq_kv=256, dim=64).tensors}
    # The first 256 rows are finished by the first key block.
    assert _plan(heads=1, seq=512, dim=64, causal=True).tensor("O_running").rows == 256


def test_are_blocks_above_the_diagonal_skipped() -> None:
    moved = sm_port_bytes(_plan(heads=1, seq=1024, dim=64, causal=True))
    assert moved["Q"] == (2 * 64 * (1024 + 768 + 512 + 256), 0)
    assert moved["O_running"] == (4 * 64 * (768 + 512 + 256), 4 * 64 * (768 + 512 + 256))
    assert moved["K"] == (2 * 64 * 1024, 0)


def test_are_the_papers_tiles_a_quarter_of_sram() -> None:
    assert flash1.paper_tiles(192 << 10, 64, 2) == (64, 384)
    assert flash1.paper_tiles(100_000, 128, 2) == (98, 98)


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_do_textbook_bytes_of_q_and_o_fall_as_one_over_m(dim: int) -> None:
    """(3 Tc - 1) N d elements with Tc = 4 N d / M: 12 N^2 d^2 / M - N d."""
    seq = 8192
    for sram_elements in (2**14, 2**15, 2**16, 2**17):
        form = textbook(_plan(2 * sram_elements, heads=1, seq=seq, dim=dim))
        moved = sum(form["Q"]) + sum(form["O"])
        assert moved == 2 * (12 * seq**2 * dim**2 // sram_elements - seq * dim)


def test_is_the_textbook_form_compulsory_with_one_key_block() -> None:
    plan = _plan(heads=2, seq=512, seq_kv=128, dim=64)
    assert textbook(plan) == {name: moved for name, moved in compulsory_bytes(plan).items() if name != "LSE"}
