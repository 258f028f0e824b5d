"""The three-kernel algorithm: schedules to draw, for the tests that every algorithm takes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from traces.three_kernels import FEATURES


def three_kernel_schedules(**own: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    tile, stages, cluster = st.sampled_from((16, 40, 64, 128)), st.integers(1, 4), st.integers(1, 2)
    raster = st.sampled_from(("along_n", "along_m"))
    shape = {"tile_q": tile, "pv_tile_q": tile, "tile_kv": tile, "pv_tile_d": tile, "tile_k": tile, "pv_tile_k": tile}
    clusters = dict.fromkeys(("cluster_m", "cluster_n", "pv_cluster_m", "pv_cluster_n"), cluster)
    rest = {"stages": stages, "pv_stages": stages, "raster": raster, "pv_raster": raster}
    rest["swizzle"] = st.integers(0, 3)
    workers = {"persistent": st.booleans(), "persistent_ctas": st.integers(1, 9), "softmax_rows": st.integers(1, 5)}
    return st.fixed_dictionaries(shape | clusters | rest | workers | own)


SCHEDULES = three_kernel_schedules()

__all__ = ["FEATURES", "SCHEDULES"]
