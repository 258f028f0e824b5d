"""Do recorded builds compile for every GPU, leave the others as they were, and record what happened?"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_cupy.algorithms import KERNELS, kernels
from kernels_cupy.campaign import sources
from kernels_cupy.cta_record import FIELDS, MOMENTS, VARIABLE, recording, stamps_of, times_of
from kernels_cupy.kernel import KernelSpec
from tests.kernels_cupy.compiling import ARCHITECTURES, plan_of

DECODED: dict[str, Any] = {"batch": 4, "heads": 32, "kv_heads": 8, "seq": 1, "seq_kv": 2048}
CLASSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "flash2": ("flash2", {}, {"heads": 2, "seq": 512, "dim": 128}),
    "flash2, 64, causal": ("flash2", {}, {"heads": 2, "seq": 512, "dim": 64, "causal": True, "layout": "bshd"}),
    "flash1": ("flash1", {}, {"heads": 2, "seq": 512, "dim": 256}),
    "flash2_backward": ("flash2_backward", {}, {"heads": 4, "kv_heads": 2, "seq": 512, "dim": 128, "causal": True}),
    "flash2_backward, wide": ("flash2_backward", {}, {"heads": 2, "seq": 512, "dim": 256}),
    "naive": ("naive", {}, {"heads": 1, "seq": 4096, "dim": 128}),
    "naive_online_softmax": ("naive_online_softmax", {}, {"heads": 1, "seq": 4096, "dim": 64}),
    "decode_split, fp8": ("decode_split", {}, {**DECODED, "kv_dtype": "fp8"}),
    "decode_split, latent": ("decode_split", {}, {**DECODED, "kv_heads": 1, "dim": 576, "dim_v": 512, "mla": True}),
    "paged_decode, v2": ("paged_decode", {"variant": "v2"}, {**DECODED, "page_size": 16}),
}
"""Together they have every source."""


def launches(name: str) -> tuple[KernelSpec, ...]:
    algorithm, schedule, shape = CLASSES[name]
    return kernels(plan_of(algorithm, schedule, **shape))


def test_does_every_kernel_record() -> None:
    specs = list(chain.from_iterable(map(launches, CLASSES)))
    assert {spec.source for spec in specs} == {p for p in sources() if p.suffix == ".cu" and p.stem != "between"}
    assert {algorithm for algorithm, _, _ in CLASSES.values()} | {"decode"} == set(KERNELS)
    for spec in specs:
        text = spec.source.read_text()
        assert text.count("CtaRecord record;") == text.count('extern "C" __global__'), spec.source.name
        assert spec.grid[1:] == spec.block[1:] == (1, 1), "records are by blockIdx.x and threadIdx.x"


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CLASSES)
def test_does_a_recorded_build_spill_next_to_nothing(name: str, arch: str) -> None:
    for spec in launches(name):
        builds = (spec, recording(spec), recording(spec, stamps=True))
        plain, recorded, stamped = (s.compile(arch).reports[spec.entry] for s in builds)
        # flash2 takes all 255 registers; on sm_100a it spills a few bytes before its loop in either build.
        assert recorded.spill_store_bytes <= plain.spill_store_bytes + 32, spec.name
        assert stamped.spill_store_bytes <= plain.spill_store_bytes + 64, spec.name
        assert arch != "sm_90a" or recorded.stack_bytes == 0
        assert recorded.static_shared_bytes == 0
        assert VARIABLE.encode() in recording(spec).compile(arch).path.read_bytes()


@pytest.mark.parametrize("name", CLASSES)
def test_is_a_build_without_records_the_one_without_the_line(name: str, tmp_path: Path) -> None:
    for spec in launches(name):
        stripped = tmp_path / spec.source.name
        text = spec.source.read_text().replace('#include "cta_record.cuh"\n', "")
        text = re.sub(r" *(CtaRecord record|stamp\(.*\));\n", "", text)
        assert "record" not in text and "stamp" not in text
        stripped.write_text(text)
        without = replace(spec, source=stripped).compile("sm_90a").path.read_bytes()
        assert spec.compile("sm_90a").path.read_bytes() == without, spec.name


def test_are_records_turned_into_times() -> None:
    def table(*ctas: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array(ctas, np.uint64)

    assert FIELDS == ("sm", "start_ns", "start_clock", "end_ns", "end_clock")
    epoch = 1_790_000_000_000_000_000
    qk = table((3, epoch + 32, 7_000_000, epoch + 64, 7_000_050), (131, epoch, 9_000_000, epoch + 96, 9_000_190))
    pv = table((3, epoch + 4000, 7_008_000, epoch + 4320, 7_008_600))
    first, second = times_of(("qk", "pv"), (qk, pv))
    assert (first.kernel, second.kernel) == ("qk", "pv") and first.sm.tolist() == [3, 131]
    assert first.start_ns.tolist() == [32, 0] and first.end_ns.tolist() == [64, 96]
    assert first.start_clock.tolist() == [0, 2_000_000] and first.duration_cycles.tolist() == [50, 190]
    assert second.start_ns.tolist() == [0] and second.start_clock.tolist() == [8_000]
    with pytest.raises(RuntimeError, match="1 CTAs of kernel pv have left no record"):
        times_of(("qk", "pv"), (qk, table((3, epoch, 1, 0, 0))))


def test_are_stamps_cycles_since_the_start_of_their_cta_also_where_the_low_half_of_the_clock_turns_over() -> None:
    records = np.zeros((2, len(FIELDS)), np.uint64)
    records[:, FIELDS.index("start_clock")] = (7_000, 2**33 - 100)
    clocks = np.zeros((2, 1, len(MOMENTS)), np.uint32)
    clocks[0, 0, MOMENTS.index("issued")], clocks[1, 0, MOMENTS.index("sent")] = 7_350, 900
    stamps = stamps_of(records, clocks)
    assert stamps[0, 0, MOMENTS.index("issued")] == 350 and stamps[1, 0, MOMENTS.index("sent")] == 1000
    assert np.isnan(stamps).sum() == stamps.size - 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flash2", "naive", "decode_split, latent"])
@pytest.mark.parametrize("l2", ["cold", "warm", "flush"])
def test_do_kernels_record_every_cta_and_compute_the_same(name: str, l2: str) -> None:
    from kernels_cupy.arrays import random_inputs
    from kernels_cupy.run import Session

    algorithm, schedule, shape = CLASSES[name]
    plan = plan_of(algorithm, schedule, **shape)
    inputs = random_inputs(plan)
    plain, session = Session(plan, inputs), Session(plan, inputs, record="ctas")
    plain.launch()
    recorded = session.record(l2)
    for output in plan.outputs:
        assert (plain.arrays[output] == session.arrays[output]).all(), "the same bits"
    assert [(t.kernel, t.ctas) for t in recorded.launches] == [(s.name, s.ctas) for s in plain.specs]
    for times in recorded.launches:
        assert 0 <= times.sm.min() <= times.sm.max() < session.gpu.sm_count
        assert times.start_ns.min() == 0 and times.duration_cycles.min() > 0
        assert times.span_ns < 1e3 * recorded.time_us
        assert 0.2 < times.clock_ghz < 3
        assert len(set(times.sm.tolist())) > 1


@pytest.mark.gpu
def test_are_launches_of_one_cubin_kept_apart() -> None:
    """dK and dV of the query heads are summed by the same kernel."""
    from kernels_cupy.run import Session

    algorithm, schedule, shape = CLASSES["flash2_backward"]
    *_, sum_dk, sum_dv = Session(plan_of(algorithm, schedule, **shape), None, record="ctas").record().launches
    assert sum_dk.kernel != sum_dv.kernel
    assert sum_dv.start_clock.min() > sum_dk.start_clock.min()


@pytest.mark.gpu
def test_is_a_session_without_records_refused() -> None:
    from kernels_cupy.run import Session

    with pytest.raises(ValueError, match="only when made with record='ctas'"):
        Session(plan_of("flash2", heads=1, seq=128, dim=64), None).record()
