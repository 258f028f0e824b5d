"""Does the comparison with float64 pass what is right, and never what is not?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels_cupy.arrays import decode, encode, memory_shape, poison, random_inputs, strides
from kernels_cupy.verify import compare, tolerance
from tests.kernels_cupy.compiling import plan_of
from tests.traces.problems import problems
from traces import numeric
from traces.algorithms import algorithm
from traces.problem import AttentionProblem

SHAPE: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 33, "seq_kv": 20, "dim": 16, "causal": True}


@pytest.fixture(scope="module")
def computed() -> tuple[Any, dict[str, NDArray[np.float32]], NDArray[np.float32]]:
    """A plan with rows that see no key, its inputs, and the trace's own output."""
    plan = plan_of("naive", **SHAPE)
    inputs = random_inputs(plan)
    stored = {t.name: decode(t, encode(t, inputs[t.name])) for t in plan.tensors if t.name in plan.inputs}
    return plan, stored, numeric.run(plan, stored)["O"]


def test_does_the_trace_itself_pass(computed: Any) -> None:
    plan, inputs, output = computed
    assert 1e-5 < compare(plan, inputs, lambda name: output)["O"] < tolerance(plan)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 100.0])
def test_does_one_wrong_element_fail(computed: Any, wrong: float) -> None:
    plan, inputs, output = computed
    spoilt = output.copy()
    spoilt[1, 2, 30, 5] = wrong
    assert not compare(plan, inputs, lambda name: spoilt)["O"] <= tolerance(plan)


def test_must_rows_without_keys_be_zero(computed: Any) -> None:
    plan, inputs, output = computed
    assert plan.problem.visible_keys(0) == 0
    spoilt = output.copy()
    spoilt[0, 0, 0] = np.nan
    assert compare(plan, inputs, lambda name: spoilt)["O"] == np.inf


@pytest.mark.parametrize("wrong", [np.nan, 0.5])
def test_must_the_padding_of_unequal_sequences_end_as_zeros(wrong: float) -> None:
    shape: dict[str, Any] = {"lengths": (9, 0, 33), "kv_lengths": (20, 5, 0), "heads": 4, "kv_heads": 2, "dim": 16}
    plan = plan_of("naive", **shape)
    inputs = {n: plan.tensor(n).dtype.round(x) for n, x in random_inputs(plan).items()}
    output = numeric.run(plan, inputs)["O"]
    assert output.shape == (3, 4, 33, 16) and np.any(output[0, :, :9] != 0)
    assert 1e-5 < compare(plan, inputs, lambda name: output)["O"] < tolerance(plan)
    for b, row in ((0, 9), (1, 0), (2, 32)):
        spoilt = output.copy()
        spoilt[b, 3, row, 5] = wrong
        assert compare(plan, inputs, lambda name, spoilt=spoilt: spoilt)["O"] > tolerance(plan)
    longer = {name: x.copy() for name, x in inputs.items()}
    for name in "KV":
        longer[name][0, :, 20:] = longer[name][1, :, 5:] = 100.0  # padding, which nobody may look at
    assert np.array_equal(numeric.run(plan, longer)["O"], output)


def test_is_lse_compared_with_its_infinities() -> None:
    module = algorithm("flash2")
    problem = AttentionProblem(**SHAPE)
    plan = module.plan(problem, module.default_schedule(problem, "mma_sync", 132))
    inputs = {n: plan.tensor(n).dtype.round(x) for n, x in random_inputs(plan).items()}
    outputs = numeric.run(plan, inputs)
    errors = compare(plan, inputs, outputs.__getitem__)
    assert set(errors) == {"O", "LSE"} and all(0 < error < tolerance(plan) for error in errors.values())
    outputs["LSE"][np.isinf(outputs["LSE"])] = -1e30
    assert compare(plan, inputs, outputs.__getitem__)["LSE"] == np.inf


@pytest.mark.parametrize("name", ["decode_split", "paged_decode"])
@pytest.mark.parametrize(
    "cache",
    [
        {"mla": True, "kv_heads": 1, "dim": 64, "dim_v": 48},
        {"kv_dtype": "fp8", "outlier_channels": 4},
        {"kv_dtype": "int8", "kv_scale": "channel", "outlier_channels": 6},
        {"kv_dtype": "int8", "kv_scale": "head", "outlier_channels": 2},
    ],
)
def test_are_latents_and_outliers_understood(name: str, cache: dict[str, Any]) -> None:
    module = algorithm(name)
    problem = AttentionProblem(**{"heads": 4, "kv_heads": 2, "seq": 1, "kv_lengths": (40, 0, 17)} | cache)
    plan = module.plan(problem, module.default_schedule(problem, "mma_sync", 132))
    inputs = {n: decode(plan.tensor(n), encode(plan.tensor(n), x)) for n, x in random_inputs(plan).items()}
    outputs = numeric.run(plan, inputs)
    assert all(0 < error < tolerance(plan) for error in compare(plan, inputs, outputs.__getitem__).values())
    for tensor in ("K", "KV", "K_outliers"):
        if tensor in inputs:
            spoilt = inputs | {tensor: inputs[tensor] * np.float32(2)}
            assert compare(plan, spoilt, outputs.__getitem__)["O"] > tolerance(plan)


@given(problems(longest=20), st.integers(0, 9))
def test_do_arrays_keep_values_formats_and_layouts(problem: AttentionProblem, seed: int) -> None:
    module = algorithm("naive")
    plan = module.plan(problem, module.Schedule_())
    for name, values in random_inputs(plan, seed).items():
        tensor = plan.tensor(name)
        array = encode(tensor, values)
        assert array.shape == memory_shape(tensor) and array.nbytes == tensor.size_bytes and array.flags.c_contiguous
        assert np.array_equal(decode(tensor, array), tensor.dtype.round(values))
        assert np.all(np.isnan(decode(tensor, np.full_like(array, poison(tensor)))))
        b, h, r = tensor.batch - 1, tensor.heads - 1, tensor.rows - 1
        distance = tensor.view(b, h).window(r, 1).address - tensor.base
        assert sum(np.multiply((b, h, r), strides(tensor))) == distance // tensor.dtype.element_bytes
