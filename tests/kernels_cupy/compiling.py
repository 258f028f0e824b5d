"""What the tests of kernels share: plans of their default schedules, compiled for several GPUs, and the comparison."""

from __future__ import annotations

from typing import Any

from kernels_cupy.algorithms import kernels, make_plan
from kernels_cupy.kernel import KernelSpec
from traces.launch import Plan
from traces.problem import AttentionProblem

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
SM_COUNT = 132


def plan_of(algorithm: str, schedule: dict[str, Any] | None = None, **shape: Any) -> Plan:
    """The plan that the kernels of `algorithm` run on a card of 132 SMs."""
    return make_plan(algorithm, AttentionProblem(**shape), SM_COUNT, schedule)


def assert_agrees_with_trace(plan: Plan) -> tuple[KernelSpec, ...]:
    """Each kernel has the name, the CTAs, the threads and the shared memory of its launch in the trace."""
    specs = kernels(plan)
    ours = [(s.name, s.ctas, s.threads, s.shared_bytes) for s in specs]
    assert ours == [(k.name, k.ctas, k.resources.threads, k.resources.shared_bytes) for k in plan.launches]
    names = {t.name for t in plan.tensors}
    assert all(set(spec.tensors) <= names for spec in specs)
    return specs


def assert_compiles(specs: tuple[KernelSpec, ...], arch: str) -> None:
    """Every kernel compiles for `arch`, fits the register file, and keeps hot loops out of local memory."""
    for spec in specs:
        report = spec.compile(arch).reports[spec.entry]
        assert report.registers * spec.threads <= 65536
        assert report.static_shared_bytes == 0, "shared memory that the schedule's formula does not know"
        if spec.hot:
            spills = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
            assert spills == (0, 0, 0), f"{spec.name} for {arch} with {dict(spec.defines)}"


def assert_right_on_gpu(algorithm: str) -> None:
    """The kernels agree with float64 on every shape of the self-test (that they support)."""
    from kernels_cupy.gpu import current_gpu
    from kernels_cupy.selftest import check

    assert check(algorithm, current_gpu()) == 0
