"""Does the example of docs/algorithms.md work as it stands there?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.traces import test_analytic, test_numbers, test_programs
from traces.algorithms import ALGORITHMS, Algorithm

GUIDE = Path(__file__).parents[2] / "docs" / "algorithms.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the guide's algorithm, registered together with its test module for the time of a test."""
    algorithm, tests = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    modules: list[Any] = []
    for name, source in (("traces.algorithms.fmha", algorithm), ("tests.traces.algorithms.test_fmha", tests)):
        modules.append(ModuleType(name))
        monkeypatch.setitem(sys.modules, name, modules[-1])
        exec(compile(source, f"{GUIDE.name}: {name}", "exec"), modules[-1].__dict__)
    monkeypatch.setitem(ALGORITHMS, modules[0].name, modules[0])
    return str(modules[0].name)


def test_does_the_example_have_every_part_of_the_protocol(example: str) -> None:
    parts = {*Algorithm.__annotations__, *(name for name in vars(Algorithm) if not name.startswith("_"))}
    assert {"name", "plan", "sm_port"} <= parts
    assert all(hasattr(ALGORITHMS[example], part) for part in parts)


def test_does_the_example_compute_attention(example: str) -> None:
    test_numbers.test_are_the_results_right_within_fp32_rounding(example)


def test_does_the_example_write_every_result_once(example: str) -> None:
    test_programs.test_is_every_byte_of_every_result_written_exactly_once(example)


def test_do_the_closed_forms_of_the_example_count_its_program(example: str) -> None:
    test_programs.test_do_closed_forms_equal_the_tiles_that_programs_move(example)
    test_analytic.test_do_sm_ports_carry_at_least_the_compulsory_bytes(example, True)
    test_analytic.test_do_batch_heads_and_bytes_per_element_scale_the_forms(example)


def test_does_the_guide_name_every_hook() -> None:
    hooks = set(re.findall(r"hook\([\w.]+, \"(\w+)\"", (Path(__file__).parent / "problems.py").read_text()))
    hooks |= set(re.findall(r"hook\([\w.]+, \"(\w+)\"", (Path(__file__).parent / "test_programs.py").read_text()))
    guide = GUIDE.read_text(encoding="utf-8")
    assert {"SCHEDULES", "REWRITTEN"} <= hooks
    assert all(f"`{hook}" in guide for hook in hooks)
