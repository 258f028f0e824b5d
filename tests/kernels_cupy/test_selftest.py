"""Does the self-test know before it is on a GPU what it will launch there?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernels_cupy import selftest
from kernels_cupy.algorithms import kernels
from kernels_cupy.kernel import KernelSpec
from tests.kernels_cupy.compiling import plan_of


def test_are_its_kernels_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SHAPES", ({"heads": 1, "seq": 64, "dim": 64}, {"heads": 1, "seq": 64, "dim": 20}))
    monkeypatch.setattr(selftest, "SPECIAL", {"naive": (({"heads": 1, "lengths": (64, 3)}, {}),)})
    monkeypatch.setattr(selftest, "TIMED", ({"heads": 1, "seq": 128, "dim": 128},))
    assert selftest.main(["naive", "--compile", str(tmp_path)]) == 0
    monkeypatch.setenv("GPUSIM_CUBINS", str(tmp_path))
    shapes: tuple[dict[str, Any], ...] = ({"seq": 64, "dim": 64}, {"lengths": (64, 3)}, {"seq": 128, "dim": 128})
    specs = [spec for shape in shapes for spec in kernels(plan_of("naive", heads=1, **shape))]
    assert len(specs) == 9 and all(_folder(spec) == tmp_path for spec in specs)


def _folder(spec: KernelSpec) -> Path:
    return spec.compile("sm_90a").path.parent


@pytest.mark.parametrize("algorithm", ["flash2_backward", "naive", "naive_online_softmax"])
def test_do_the_kernels_take_every_shape_of_their_own(algorithm: str) -> None:
    """Shapes for all algorithms may be refused by one; those listed for it alone may not."""
    for shape, schedule in selftest.SPECIAL[algorithm]:
        assert kernels(plan_of(algorithm, schedule, **shape))


def test_is_an_unknown_algorithm_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["flsh2", "--compile", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("selftest: error: algorithm 'flsh2' has no CUDA kernels")
