"""Where a measurement comes from: the card, its driver and clocks, the command and the kernel's source."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def provenance(*sources: Path) -> dict[str, str]:
    """Facts to store beside a measurement.

    Args:
        sources: CUDA files of the kernels that were measured; their text is hashed.
    """
    import cupy

    text = b"".join(source.read_bytes() for source in sources)
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "driver": _nvidia_smi("driver_version"),
        "sm_clock": _nvidia_smi("clocks.sm"),
        "memory_clock": _nvidia_smi("clocks.mem"),
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cupy": cupy.__version__,
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "source_sha256": hashlib.sha256(text).hexdigest(),
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name


def _nvidia_smi(field: str) -> str:
    """One field of `nvidia-smi --query-gpu`; `unknown` without the tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
