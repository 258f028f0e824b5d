"""Are problems and schedules checked, in words a user can act on?"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.traces.problems import ATTENTION, problems
from traces.algorithms import algorithm
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
        ({"dim": 1024}, "dim 1024 is outside the supported 8 to 640"),
        ({"layout": "sbhd"}, "layout 'sbhd' is not one of bhsd, bshd"),
        ({"kv_dtype": "int3"}, "dtype 'int3' is not one of"),
        ({"dim_v": 4}, "dim_v 4 is outside the supported 8 to 640"),
        ({"window": 4}, "window 4 needs causal"),
        ({"kv_lengths": (4, 5), "lengths": (4,)}, "lengths has 1 sequences but kv_lengths has 2"),
        ({"lengths": (0, 0)}, "lengths has no sequence of at least one row"),
        ({"lengths": (3, -1)}, "each of lengths must be a whole number of at least 0, not -1"),
        ({"batch": 3, "lengths": (4, 5)}, "batch 3 is not the number of lengths, 2"),
        ({"dtype": "int8"}, "dtype int8 is for K and V only"),
        ({"kv_scale": "row"}, "kv_scale 'row' is not one of token, channel, head"),
        ({"outlier_channels": 4}, "outlier_channels 4 needs a quantised K, not fp16"),
        ({"prefix": 16}, "prefix 16 needs a page_size"),
        ({"prefix": 8, "page_size": 4, "kv_dtype": "fp8", "kv_scale": "head"}, "kv_scale head with a prefix"),
        ({"prefix": 5, "page_size": 4, "lengths": (1, 1), "kv_lengths": (9, 4)}, "longer than the shortest sequence"),
        ({"sequence": 8}, r"unknown fields \['sequence'\]"),
    ],
)
def test_is_a_wrong_problem_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AttentionProblem.from_dict(wrong)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4),
    causal=st.booleans(),
    window=st.integers(0, 12),
)
@settings(deadline=None)
def test_are_the_visible_pairs_of_every_sequence_counted(
    lengths: list[tuple[int, int]], causal: bool, window: int
) -> None:
    rows, keys = (tuple(column) for column in zip(*lengths, strict=True))
    assume(max(rows) and max(keys))
    p = AttentionProblem(heads=2, dim=16, lengths=rows, kv_lengths=keys, causal=causal, window=window if causal else 0)
    pairs = 0
    for b, (n, m) in enumerate(lengths):
        seen = [
            [j for j in range(m) if not causal or (j <= i + m - n and (not window or j > i + m - n - window))]
            for i in range(n)
        ]
        for i, row in enumerate(seen):
            assert row == list(range(p.first_key(i, b), p.visible_keys(i, b)))
        assert p.visible_pairs(b) == sum(map(len, seen))
        pairs += sum(map(len, seen))
    assert p.flops() == 2 * 2 * 32 * pairs
    assert p.flops("backward") == 2 * 2 * 80 * pairs and p.flops("train") == p.flops() + p.flops("backward")


def test_is_a_feature_that_an_algorithm_lacks_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"paged K and V \(page_size\) is not supported by this algorithm"):
        AttentionProblem(page_size=16).require({"lengths"})
    AttentionProblem(lengths=(3, 4)).require({"lengths"})


@pytest.mark.parametrize("name", ATTENTION)
def test_is_a_wrong_schedule_key_or_value_refused(name: str) -> None:
    schedule = algorithm(name).Schedule_()
    key, wrong, said = "tile_q", 3, "a positive multiple of"
    if not hasattr(schedule, "tile_q"):  # tiles of several products, one key for each
        key, wrong, said = "softmax_rows", 0, "at least 1"
    assert schedule.changed({key: "64"}) == schedule.changed({key: 64})
    with pytest.raises(ValueError, match=rf"'{key}q' is not one of .*did you mean {key}"):
        schedule.changed({f"{key}q": 1})
    with pytest.raises(ValueError, match=f"{key} takes a whole number, not 'wide'"):
        schedule.changed({key: "wide"})
    with pytest.raises(ValueError, match=f"{key} must be {said}"):
        schedule.changed({key: wrong})
    if hasattr(schedule, "stages"):
        with pytest.raises(ValueError, match="stages must be"):
            schedule.changed({"stages": 0})


def test_is_a_misspelt_algorithm_answered_with_its_neighbour() -> None:
    with pytest.raises(ValueError, match="did you mean flash2"):
        algorithm("flash22")


def test_does_sawtooth_turn_at_every_query_block() -> None:
    assert [key_value_blocks(3, "sawtooth", block) for block in (0, 1, 2)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
    assert key_value_blocks(3, "forward", 1) == key_value_blocks(3, "backward", 0)[::-1] == [0, 1, 2]
