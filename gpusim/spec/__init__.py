"""GPU presets, GPU files and their units."""

from gpusim.spec.load import load_gpu, preset_names
from gpusim.spec.model import (
    PRECISIONS,
    GpuSpec,
    HbmSpec,
    HbmTiming,
    L1Spec,
    L2Spec,
    MemorySideCacheSpec,
    NocSpec,
    SmSpec,
)

__all__ = [
    "PRECISIONS",
    "GpuSpec",
    "HbmSpec",
    "HbmTiming",
    "L1Spec",
    "L2Spec",
    "MemorySideCacheSpec",
    "NocSpec",
    "SmSpec",
    "load_gpu",
    "preset_names",
]
