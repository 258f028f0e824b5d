"""Does the study of quantised caches show what is known of them?"""

from __future__ import annotations

import pytest

from experiments.kv_quantisation import (
    CACHES,
    DECODED,
    OUTLIERS,
    SHAPE,
    SINK,
    Accuracy,
    Decoding,
    accuracies,
    main,
    probability_errors,
    schemes,
    tables,
)
from experiments.kv_quantisation_page import render_page

PLAIN, WITH_OUTLIERS = CACHES


@pytest.fixture(scope="module")
def per_token() -> dict[tuple[str, str], Accuracy]:
    found = [*accuracies(match="V fp16, per token"), *accuracies(match="K fp16, V")]
    return {(a.cache, a.scheme): a for a in found}


def test_are_all_combinations_studied_once() -> None:
    found = list(schemes().values())
    assert len(found) == 1 + 3 * (2 + 2 * 2 * 3) and all(found.count(settings) == 1 for settings in found)
    assert set(DECODED) <= set(schemes())


def test_does_the_worst_of_k_come_from_its_outlier_channels(per_token: dict[tuple[str, str], Accuracy]) -> None:
    for code in ("int8", "fp8"):
        all_channels, kept = f"K {code}, V fp16, per token", f"K {code} + {OUTLIERS} channels fp16, V fp16, per token"
        assert per_token[WITH_OUTLIERS, all_channels].output_error > 5 * per_token[PLAIN, all_channels].output_error
        assert per_token[WITH_OUTLIERS, kept].output_error < 1.2 * per_token[PLAIN, kept].output_error
        kept_bytes = 2 * OUTLIERS + 4 * OUTLIERS / SHAPE["seq_kv"]  # and which they are
        assert per_token[WITH_OUTLIERS, kept].token_bytes == per_token[PLAIN, all_channels].token_bytes + kept_bytes


def test_do_bytes_and_errors_follow_the_formats(per_token: dict[tuple[str, str], Accuracy]) -> None:
    floor = {a.cache: a for a in accuracies(match="fp16") if a.scheme == "fp16"}[PLAIN]
    assert floor.token_bytes == 512 and floor.output_error < 2**-11
    v_only = {code: per_token[PLAIN, f"K fp16, V {code}, per token"] for code in ("int8", "fp8")}
    assert all(a.token_bytes == 256 + 128 + 4 for a in v_only.values())
    assert all(a.lse_error == pytest.approx(floor.lse_error) for a in v_only.values()), "V has no part in the LSE"
    # Errors of elements are independent, so relative ones stay: fp8 rounds to 2^-4 at most, uniformly within a binade.
    assert 2**-4 / 3 < v_only["fp8"].output_error < 2**-4 / 2
    assert v_only["int8"].output_error < v_only["fp8"].output_error / 3


def test_does_p_in_int8_lose_what_a_sink_leaves_over() -> None:
    errors = probability_errors()
    for formats in errors.values():
        assert formats["fp16"][0] < 2**-11 and formats["fp16"][1] < 1e-4
        assert formats["fp8"][0] > 10 * formats["fp16"][0] < formats["int8"][0]
    assert errors[SINK]["int8"][0] > 0.5 and errors[SINK]["int8"][1] > 0.05


def test_is_the_page_whole_and_the_same_again() -> None:
    rows = list(accuracies(match="V fp8, per head"))
    assert rows == list(accuracies(match="V fp8, per head"))
    steps = [
        Decoding("fp16", "flash2", 2_000_000, 0, 10.0),
        Decoding("K fp8, V fp8, per head", "flash2", 10**6, 4, 6.0),
    ]
    page = render_page(rows, tables(rows, probability_errors(), steps), "h200")
    for said in ("bytes per token and KV head", "K fp8, V fp8, per head", "attention sink", "h200", "0.60"):
        assert said in page
    assert page == render_page(rows, tables(rows, probability_errors(), steps), "h200")


def test_is_an_unknown_gpu_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpu", "h999"]) == 2
    assert "h999" in capsys.readouterr().err
