"""Are problems and schedules checked, in words a user can act on?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.traces.problems import problems
from traces.algorithms import ALGORITHMS, algorithm
from traces.problem import AttentionProblem
from traces.schedule import key_value_blocks


@given(problem=problems())
@settings(deadline=None)
def test_does_a_problem_survive_its_dictionary(problem: AttentionProblem) -> None:
    assert AttentionProblem.from_dict(problem.to_dict()) == problem


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"heads": 6, "kv_heads": 4}, "kv_heads 4 does not divide heads 6"),
        ({"seq": -1}, "seq must be a whole number of at least 1, not -1"),
        ({"dim": 1024}, "dim 1024 is outside the supported 8 to 512"),
        ({"layout": "sbhd"}, "layout 'sbhd' is not one of bhsd, bshd"),
        ({"kv_dtype": "int3"}, "dtype 'int3' is not one of"),
        ({"sequence": 8}, r"unknown fields \['sequence'\]"),
    ],
)
def test_is_a_wrong_problem_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AttentionProblem.from_dict(wrong)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_is_a_wrong_schedule_key_or_value_refused(name: str) -> None:
    schedule = algorithm(name).Schedule_()
    assert schedule.changed({"tile_q": "64"}) == schedule.changed({"tile_q": 64})
    with pytest.raises(ValueError, match=r"'tile_qq' is not one of .*did you mean tile_q"):
        schedule.changed({"tile_qq": 1})
    with pytest.raises(ValueError, match="tile_q takes a whole number, not 'wide'"):
        schedule.changed({"tile_q": "wide"})
    with pytest.raises(ValueError, match="tile_q must be a positive multiple of"):
        schedule.changed({"tile_q": 3})
    with pytest.raises(ValueError, match="stages must be"):
        schedule.changed({"stages": 0})


def test_is_a_misspelt_algorithm_answered_with_its_neighbour() -> None:
    with pytest.raises(ValueError, match="did you mean flash2"):
        algorithm("flash22")


def test_does_sawtooth_turn_at_every_query_block() -> None:
    assert [key_value_blocks(3, "sawtooth", block) for block in (0, 1, 2)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
    assert key_value_blocks(3, "forward", 1) == key_value_blocks(3, "backward", 0)[::-1] == [0, 1, 2]
