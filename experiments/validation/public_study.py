"""Published curves of cards that were not at hand, at the clock that each ran at; no policy is fitted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.micro import scaling
from experiments.micro.chase import SAMPLE, chase_again
from experiments.micro.pattern import Pattern
from experiments.micro.volume import PIECE_BYTES, shared, volume
from experiments.validation.curve import Curve, curve
from experiments.validation.data import PublicCurve, public_curves
from experiments.validation.study import Advance, Study, run, seconds, stepped
from gpusim.result import KernelResult
from gpusim.spec import GpuSpec

__all__ = ["public_studies"]

TARGET = 0.15
KB = 1024
WAVES = 4
"""Rounds of CTAs that are simulated of the many of `l2_volume`."""
BLOCKS_PER_SM = 64
"""CTAs per SM that are simulated of the many of `stream_*`."""
ROUNDS = 8


def _shape(name: str, title: str, axis: tuple[str, str], y: tuple[str, str], log_y: bool = False) -> tuple[str, Curve]:
    """A curve without points yet; `axis` and `y` are (name, unit)."""
    return name, Curve(name, title, *axis, *y, "relative", TARGET, (), True, log_y)


_VOLUME, _THREADS, _BANDWIDTH = ("volume", "kB"), ("threads", ""), ("bandwidth", "GB/s")
_STREAM = "by threads of a CTA, two CTAs per SM"
_SHAPES = dict(
    (
        _shape("l2_volume", "Bandwidth against data volume", _VOLUME, _BANDWIDTH),
        _shape("l2_shared", "L2 bandwidth, all SMs reading the same data", _VOLUME, _BANDWIDTH),
        _shape("latency", "Latency of one thread's random loads", ("buffer", "kB"), ("latency", "cycles")),
        _shape("stream_read", f"Read bandwidth from DRAM {_STREAM}", _THREADS, _BANDWIDTH, log_y=True),
        _shape("stream_scale", f"Bandwidth of y = a x {_STREAM}", _THREADS, _BANDWIDTH, log_y=True),
    )
)


def public_studies(card: str) -> list[Study]:
    """A study for each published curve of `card`."""
    return [Study((name,), _simulation(name, found)) for name, found in public_curves(card).items()]


def _simulation(name: str, found: PublicCurve) -> Callable[[GpuSpec, Advance], list[Curve]]:
    def simulate(gpu: GpuSpec, advance: Advance) -> list[Curve]:
        card = gpu.at_clock(found.clock_hz)
        value = {x: _value(name, x, card) for x in stepped(sorted(found.values), advance)}
        note = f"SM clock {found.clock_hz / 1e6:.0f} MHz, as measured."
        return [curve(replace(_SHAPES[name], note=note), found.values, value)]

    return simulate


def _value(name: str, x: float, gpu: GpuSpec) -> float:
    if name == "latency":
        size = int(x) * KB // 16384 * 16384
        loads = min(SAMPLE, ROUNDS * size // 128)
        kernel = run(chase_again(size, loads), gpu)[-1]
        return (kernel.cycles - gpu.sm.kernel_overhead_cycles) / (loads // 8 * 8)
    kernel = run(_pattern(name, x, gpu), gpu)[-1]
    moved = _bytes_of(name, kernel)
    return moved / seconds(kernel, gpu) / 1e9


def _pattern(name: str, x: float, gpu: GpuSpec) -> Pattern:
    sms = gpu.sm.count
    if name == "l2_volume":
        pieces = max(1, int(x) * KB // PIECE_BYTES)
        return volume(pieces, max(2 * sms * WAVES, pieces))
    if name == "l2_shared":
        return shared(int(x) * KB, sms)
    half = gpu.sm.shared_memory_bytes // 2 - 2048  # two CTAs fit, three do not
    return scaling.blocks(BLOCKS_PER_SM * sms, int(x), half, name == "stream_scale")


def _bytes_of(name: str, kernel: KernelResult) -> int:
    return kernel.sm_read_bytes + (kernel.sm_write_bytes if name == "stream_scale" else 0)
