"""Is every committed measurement read, and read as what it is?"""

import csv
import math

import pytest

from experiments.measurements import (
    MEASURED,
    L2State,
    MeasuredCall,
    attention_calls,
    capacity_reads,
    cta_to_sm_order,
    folder_of,
    parse_config,
    sdpa_speed,
    writeback_steps,
)

STATES: tuple[L2State, ...] = ("warm", "cold")


def find(algorithm: str, config: str, l2: L2State = "warm") -> MeasuredCall:
    (call,) = [c for c in attention_calls("h200", l2) if (c.algorithm, c.config) == (algorithm, config)]
    return call


@pytest.mark.parametrize("l2", STATES)
def test_every_row_becomes_one_kernel(l2: L2State) -> None:
    with (MEASURED / "h200" / f"torch_attention_{l2}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kernels = [k for c in attention_calls("h200", l2) for k in c.kernels]
    assert [k.name for k in kernels] == [r["kernel"] for r in rows]
    assert [k.dram_read_bytes for k in kernels] == [float(r["dram_read_bytes"]) for r in rows]
    assert all(k.ctas > 0 and k.threads % 32 == 0 and 0 <= k.l2_hit_rate <= 1 and k.cycles > 0 for k in kernels)


@pytest.mark.parametrize("l2", STATES)
def test_labels_are_unique_and_naive_calls_have_three_kernels(l2: L2State) -> None:
    calls = attention_calls("h200", l2)
    assert len({c.label for c in calls}) == len(calls)
    assert {len(c.kernels) for c in calls if c.algorithm == "naive"} == {3}


def test_units() -> None:
    kernel = find("naive", "B1_H1_N4096_d128").kernels[0]
    assert kernel.time_us == pytest.approx(15.2)
    assert kernel.l2_read_bytes == 801708 * 32
    assert kernel.fabric_bytes == 655876 * 32
    assert kernel.l2_hit_rate == pytest.approx(1743089 / (1743089 + 97174))
    assert (kernel.grid, kernel.block, kernel.dynamic_shared_bytes) == ((2, 66, 1), (384, 1, 1), 213188)


def test_naive_single_head_moved_less_than_the_textbook_because_the_l2_kept_half_of_s_and_p() -> None:
    call = find("naive", "B1_H1_N4096_d128")
    textbook = 8 * 4096**2 + 8 * 4096 * 128
    assert call.dram_bytes == pytest.approx(97.2e6, rel=0.01)
    assert call.dram_bytes < 0.75 * textbook


def test_flash_causal_rows_have_a_causal_problem() -> None:
    assert find("cudnn_causal", "B1_H32_N8192_d128").problem.causal
    assert not find("cudnn", "B1_H32_N8192_d128").problem.causal


def test_decode_configs_are_one_query_row() -> None:
    problem = parse_config("B16_H32_Hkv8_M32768_d128")
    assert (problem.batch, problem.seq, problem.seq_kv, problem.kv_heads) == (16, 1, 32768, 8)


def test_an_unreadable_config_is_refused_with_examples() -> None:
    with pytest.raises(ValueError, match="B1_H32_N4096_d128"):
        parse_config("32x4096")


def test_the_capacity_benchmark_has_no_port_counters() -> None:
    reads = capacity_reads(folder_of("h200"))
    assert {r.pattern for r in reads} >= {"read_fixed", "read_shifted", "read_all", "write_again"}
    assert all(math.isnan(r.sm_read_bytes) and r.l2_read_bytes >= 0 for r in reads)


def test_writeback_steps_keep_their_order() -> None:
    steps = [s.step for s in writeback_steps(folder_of("h200"))]
    assert steps.index("write 32 MiB after clean L2") < steps.index("evict all (read 512 MiB) post 32")


def test_each_sm_takes_one_of_the_first_132_ctas() -> None:
    assert sorted(cta_to_sm_order("h200")["grid132_threads128"]) == list(range(132))


def test_speed_rows() -> None:
    assert all(row["fwd_ms"] > 0 for row in sdpa_speed("h200")["prefill"])
