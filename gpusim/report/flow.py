"""Figure: the bytes' way through the memory hierarchy as a Sankey diagram, reads left, writes right.

HBM → L2 → crossbar (requests for one line merged) → SMs → L2 → HBM, one ribbon per tensor; what crosses the fabric to
the other half of the L2 and what stays dirty in the L2 branch off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpusim.report.colours import tensor_colour
from gpusim.report.fields import Result, byte_count
from gpusim.report.figure import Figure, figure
from gpusim.report.text import human_bytes

__all__ = ["HOPS", "NODES", "flow_figure", "flows"]


_HALO = "0 0 3px var(--card), 0 0 3px var(--card), 0 0 5px var(--card)"


class Flow(NamedTuple):
    """Bytes of one tensor over one hop."""

    source: str
    target: str
    tensor: str
    bytes: float


NODES = {
    "hbm": ("HBM", "dram_read_bytes"),
    "l2": ("L2", "l2_read_bytes"),
    "crossbar": ("Merging", ""),
    "fabric": ("Fabric", "fabric_bytes"),
    "sm": ("SMs", "sm_read_bytes"),
    "l2w": ("L2", "l2_write_bytes"),
    "hbmw": ("HBM", "dram_write_bytes"),
    "dirty": ("Left in L2", "dirty_bytes_left"),
}
"""Every place on the way: its name, and the counter whose bytes its label shows."""

HOPS = (
    ("hbm", "l2", "dram_read_bytes"),
    ("l2", "crossbar", "l2_read_bytes"),
    ("l2", "fabric", "fabric_bytes"),
    ("crossbar", "sm", "sm_read_bytes"),
    ("sm", "l2w", "l2_write_bytes"),
    ("l2w", "hbmw", "dram_write_bytes"),
    ("l2w", "dirty", "dirty_bytes_left"),
)


def flows(result: Result) -> list[Flow]:
    """Every hop's bytes per tensor, without the empty ones."""
    return [
        Flow(source, target, tensor, count)
        for source, target, field in HOPS
        for tensor, counters in result["by_tensor"].items()
        if (count := byte_count(counters, field)) > 0
    ]


def flow_figure(result: Result, tensors: Sequence[str], name: str) -> Figure:
    """The diagram; ribbons are as wide as their bytes.

    Args:
        tensors: every tensor of the page, which fixes the colours.
        name: id of the page's element.
    """
    order = {tensor: i for i, tensor in enumerate(tensors)}
    ribbons = sorted(flows(result), key=lambda flow: order[flow.tensor])
    used = [node for node in NODES if any(node in (flow.source, flow.target) for flow in ribbons)]
    place = {node: i for i, node in enumerate(used)}
    names = [_label(node, ribbons) for node in used]
    data = {
        "type": "sankey",
        "arrangement": "snap",
        "valueformat": ",.2f",
        "valuesuffix": " MB",
        "node": {
            "label": names,
            "customdata": names,
            "align": "left",
            "color": ["var(--node)"] * len(used),
            "line": {"width": 0},
            "pad": 22,
            "thickness": 14,
            "hovertemplate": "%{customdata}<extra></extra>",
        },
        "link": {
            "source": [place[flow.source] for flow in ribbons],
            "target": [place[flow.target] for flow in ribbons],
            "value": [flow.bytes / 1e6 for flow in ribbons],
            "label": [flow.tensor for flow in ribbons],
            "color": [tensor_colour(tensors, flow.tensor, soft=True) for flow in ribbons],
            "customdata": [_route(flow) for flow in ribbons],
            "hovertemplate": "<b>%{label}</b> %{customdata}<extra></extra>",
        },
        "textfont": {"color": "var(--ink)", "size": 12, "shadow": _HALO},
    }
    layout = {"height": 320, "margin": {"l": 8, "r": 8, "t": 16, "b": 16}}
    return figure(name, "flow", [data] if ribbons else [], layout, short=[NODES[node][0] for node in used])


def _label(node: str, ribbons: Sequence[Flow]) -> str:
    """`HBM 201 MB`; for the merging of requests, how many SM bytes one L2 byte served."""
    title, field = NODES[node]
    if not field:
        fetched = sum(flow.bytes for flow in ribbons if flow.target == node)
        served = sum(flow.bytes for flow in ribbons if flow.source == node)
        return f"{title} {served / fetched:.2f}x" if fetched else title
    hops = {(source, target) for source, target, counter in HOPS if counter == field}
    return f"{title} {human_bytes(sum(flow.bytes for flow in ribbons if (flow.source, flow.target) in hops))}"


def _route(flow: Flow) -> str:
    return f"{NODES[flow.source][0]} → {NODES[flow.target][0]}: {human_bytes(flow.bytes)}"
