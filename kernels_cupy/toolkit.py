"""Finds CuPy and the CUDA headers, wherever pip or the CUDA toolkit has put them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kernels_cupy.errors import Unavailable


@cache
def cupy_module() -> Any:
    """The `cupy` package, which works without a GPU as far as compiling goes.

    Raises:
        Unavailable: it is not installed, or broken.
    """
    try:
        import cupy
    except ImportError as error:
        reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise Unavailable(f"CuPy {reason}; pip install 'gpusim[cuda13]' (or [cuda12]) provides it") from None
    return cupy


@cache
def gpu_count() -> int:
    """GPUs that CuPy sees; 0 without a driver."""
    cupy = cupy_module()
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def require_gpu() -> Any:
    """CuPy, on a machine that has a GPU.

    Raises:
        Unavailable: no CuPy or no GPU.
    """
    cupy = cupy_module()
    if not gpu_count():
        raise Unavailable("no NVIDIA GPU is visible to CUDA; run on a machine with one (nvidia-smi lists them)")
    return cupy


def architecture(major: int, minor: int) -> str:
    """Compiler target of a compute capability; from 9.0 on with the features of that chip only (`sm_90a`)."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def include_folders() -> tuple[str, ...]:
    """Folders that together hold `cuda_fp16.h` and all it includes, of one CUDA version.

    Raises:
        Unavailable: no CUDA headers anywhere.
    """
    for folder in _candidates():
        if (folder / "cuda_fp16.h").is_file():
            return tuple(str(f) for f in (folder, folder / "cccl") if f.is_dir())
    raise Unavailable(
        "the CUDA headers (cuda_fp16.h) are nowhere to be found; pip install nvidia-cuda-runtime nvidia-cuda-crt "
        "nvidia-cuda-cccl, or set CUDA_PATH to a CUDA toolkit"
    )


def _candidates() -> Iterator[Path]:
    """Include folders of pip's wheels that fit CuPy's CUDA, then of toolkits."""
    major = cupy_module().cuda.nvrtc.getVersion()[0]
    for site in dict.fromkeys(sys.path):
        root = Path(site) / "nvidia"
        yield root / f"cu{major}" / "include"
        if major == 12:
            yield root / "cuda_runtime" / "include"
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    compiler = shutil.which("nvcc")
    if compiler is not None:
        yield Path(compiler).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
