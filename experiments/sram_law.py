"""Does more SRAM mean less traffic? FlashAttention-1 on GPUs that differ in shared memory alone.

python -m experiments.sram_law
python -m experiments.sram_law --gpu h200 --heads 132 --batch 2 --html sram.html

Theorem 2 of Dao et al. 2022 (arXiv:2205.14135): Theta(N^2 d^2 / M) HBM accesses with an SRAM of M, down to the Nd that
cannot be avoided. Each GPU gets the key block and warps of `--schedule best` for the release's query rows: how many
rows come past at a time is no matter to the law, only how many keys stay. The traffic is simulated. What is beyond
compulsory (`excess`) is fitted by a power of M.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusim.best_schedule import best_plan
from gpusim.cli.tables import table
from gpusim.errors import UserError
from gpusim.machine import simulate
from gpusim.report.colours import result_colour
from gpusim.report.figure import Figure, axis, figure
from gpusim.report.page import page
from gpusim.report.sections import grid
from gpusim.spec import GpuSpec, load_gpu
from traces.algorithms.flash1 import paper_tiles
from traces.analytic import compulsory_bytes, total
from traces.problem import AttentionProblem

__all__ = ["Point", "exponent", "main", "sweep"]

SIZES_KIB = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
RELEASE_ROWS = 16
HEADER = ("SRAM KiB", "Br", "Bc", "paper's Bc", "passes", "L2 MB", "HBM MB", "x compulsory", "ms")


@dataclass(frozen=True, slots=True)
class Point:
    """One GPU of the sweep.

    Attributes:
        sram_bytes: shared memory of an SM.
        tile_q, tile_kv: tiles chosen.
        paper_tile_kv: Bc by the paper's rule for the SRAM that one CTA may have.
        passes: outer steps, Tc.
        l2_bytes, hbm_bytes: simulated, reads and writes; data left dirty in the L2 count as written to HBM.
        least_bytes: each of Q, K, V, O and LSE once.
        milliseconds: simulated time.
    """

    sram_bytes: int
    tile_q: int
    tile_kv: int
    paper_tile_kv: int
    passes: int
    l2_bytes: int
    hbm_bytes: int
    least_bytes: int
    milliseconds: float


def sweep(gpu: GpuSpec, problem: AttentionProblem, sizes_bytes: Sequence[int]) -> list[Point]:
    """Simulate `flash1` with its best tiles for each size of an SM's shared memory."""
    points = []
    for size in sizes_bytes:
        machine = gpu.with_overrides([f"sm.shared_memory={size}B"])
        plan, _ = best_plan("flash1", problem, machine, {"tile_q": RELEASE_ROWS})
        result = simulate(plan, machine).total()
        least = {name: moved for name, moved in compulsory_bytes(plan).items() if name != "O_running"}
        sram = machine.sm.shared_memory_per_cta_bytes
        points.append(
            Point(
                sram_bytes=size,
                tile_q=plan.schedule.tile_q,
                tile_kv=plan.schedule.tile_kv,
                paper_tile_kv=paper_tiles(sram, problem.dim, problem.storage.element_bytes)[1],
                passes=-(-problem.seq_kv // plan.schedule.tile_kv),
                l2_bytes=result.l2_read_bytes + result.l2_write_bytes,
                hbm_bytes=result.dram_read_bytes + result.dram_write_bytes + result.dirty_bytes_left,
                least_bytes=total(least),
                milliseconds=result.time_us / 1e3,
            )
        )
    return points


def exponent(points: Sequence[Point], level: str) -> float:
    """x of excess ~ M^x, least squares over the points with more than one pass; `level` is `l2` or `hbm`."""
    several = [p for p in points if p.passes > 1]
    if len(several) < 2:
        raise UserError("the power law needs at least two sizes at which a head takes more than one pass")
    excess = [getattr(p, f"{level}_bytes") - p.least_bytes for p in several]
    return float(np.polyfit(np.log([p.sram_bytes for p in several]), np.log(excess), 1)[0])


def rows(points: Sequence[Point]) -> list[list[str]]:
    """The table's cells."""
    return [
        [
            f"{p.sram_bytes / 1024:g}",
            *(str(n) for n in (p.tile_q, p.tile_kv, p.paper_tile_kv, p.passes)),
            f"{p.l2_bytes / 1e6:,.0f}",
            f"{p.hbm_bytes / 1e6:,.0f}",
            f"{p.hbm_bytes / p.least_bytes:.2f}",
            f"{p.milliseconds:.2f}",
        ]
        for p in points
    ]


def law(points: Sequence[Point]) -> str:
    """The fitted powers in one sentence."""
    powers = ", ".join(f"{level.upper()} M^{exponent(points, level):.2f}" for level in ("l2", "hbm"))
    return f"bytes beyond compulsory: {powers} (theory: M^-1)"


def render_page(points: Sequence[Point], gpu: str, problem: AttentionProblem) -> str:
    """The whole page as text."""
    shape = f"{gpu}, batch {problem.batch}, {problem.heads} heads x {problem.seq} x {problem.dim} {problem.dtype}"
    body = (
        f'<section id="law"><h2>Traffic against SRAM</h2><p>{law(points)}</p><div class="card">'
        '<div class="figure" id="traffic" role="img" aria-label="Simulated bytes against shared memory"></div>'
        f'</div></section><section id="points"><h2>Points</h2><div class="card">'
        f"{grid(HEADER, rows(points), name='Points of the sweep')}</div></section>"
    )
    links = '<a href="#law">law</a><a href="#points">points</a>'
    title = "FlashAttention-1 with more SRAM"
    return page(title, shape, ("Parts", links), body, "Simulated by gpusim.", [_figure(points)], ())


def _figure(points: Sequence[Point]) -> Figure:
    kib = [p.sram_bytes / 1024 for p in points]
    first = points[0]
    falling = [first.least_bytes + (first.hbm_bytes - first.least_bytes) * kib[0] / size for size in kib]
    lines: list[tuple[str, Sequence[float], int, str]] = [
        ("L2", [p.l2_bytes for p in points], 0, "solid"),
        ("HBM", [p.hbm_bytes for p in points], 1, "solid"),
        ("compulsory + c / M", falling, 2, "dash"),
        ("compulsory", [p.least_bytes for p in points], 3, "dot"),
    ]
    data = [
        {
            "type": "scatter",
            "name": name,
            "mode": "lines+markers" if dash == "solid" else "lines",
            "x": kib,
            "y": [value / 1e6 for value in values],
            "line": {"color": result_colour(colour), "dash": dash, "width": 2},
        }
        for name, values, colour, dash in lines
    ]
    layout = {
        "height": 420,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        "xaxis": axis("shared memory of an SM (KiB)", type="log", tickvals=kib, ticktext=[f"{k:g}" for k in kib]),
        "yaxis": axis("bytes moved (MB)", type="log", dtick="D2"),
    }
    return figure("traffic", "curve", data, layout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sram_law", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", default="a100-40gb-sxm", help="GPU preset or file (default: the paper's card)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_KIB)), help="shared memory per SM, KiB, by commas")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=27, help="with the batch, two heads per SM by default")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--html", metavar="FILE", help="write a page with the figure")
    options = parser.parse_args(arguments)
    try:
        gpu = load_gpu(options.gpu, options.overrides)
        problem = AttentionProblem(batch=options.batch, heads=options.heads, seq=options.seq, dim=options.dim)
        sizes = sorted(math.floor(float(size) * 1024) for size in options.sizes.split(","))
        points = sweep(gpu, problem, sizes)
        print(table(rows(points), HEADER, numeric=range(len(HEADER))))
        print(law(points))
        if options.html:
            Path(options.html).write_text(render_page(points, gpu.name, problem), encoding="utf-8")
    except (UserError, ValueError) as error:
        print(f"sram_law: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
