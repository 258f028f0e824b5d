"""Figures that the driver says: counts, sizes, clocks, and the memory bus."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.calibration.figure import Figure, estimate, measured, significant
from experiments.calibration.folder import DEVICE, Measurements
from gpusim.spec.standards import load_standard

__all__ = ["ARCHITECTURES", "device_figures", "memory_standard"]

ARCHITECTURES = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 9): "Ada Lovelace",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (10, 3): "Blackwell",
    (12, 0): "Blackwell",
}
"""Compute capability → name (CUDA C++ Programming Guide)."""
WIDE_BUS_BITS = 2048
"""Memory buses at least this wide are of HBM."""
PIN_RATES = ((2.5e9, "HBM2"), (4e9, "HBM2e"), (6e9, "HBM3"), (float("inf"), "HBM3e"))
"""(bits per second and pin that a generation stays below, its name)."""
STACK_BITS = 1024


def device_figures(m: Measurements) -> Iterator[Figure]:
    """What `device.json` says by itself."""
    d = m.device
    guide = "CUDA C++ Programming Guide"
    yield Figure("architecture", ARCHITECTURES.get(d.capability, "unknown"), guide)
    yield Figure("compute_capability", d.compute_capability, "measured: device property")
    yield _property("sm.count", d.sm_count)
    yield _property("sm.shared_memory", d.shared_bytes_per_sm)
    yield _property("sm.shared_memory_per_cta", d.shared_bytes_per_cta)
    yield _property("sm.registers", d.registers_per_sm)
    yield _property("sm.max_threads", d.threads_per_sm)
    yield _property("sm.max_ctas", d.ctas_per_sm)
    yield _property("l2.size", d.l2_bytes)
    yield _property("hbm.size", d.memory_bytes)
    yield Figure("sm.has_wgmma", d.capability == (9, 0), "PTX ISA: wgmma needs sm_90a")
    if d.sm_clock_hz:
        yield measured(
            "sm.clock", f"{significant(d.sm_clock_hz / 1e6)}MHz", "device property, highest SM clock", DEVICE
        )
    if d.memory_clock_hz and d.memory_bus_bits:
        yield from _memory(m)


def memory_standard(bus_bits: int, clock_hz: float) -> str:
    """The generation of DRAM, by the width of the bus and the rate of a pin."""
    if bus_bits < WIDE_BUS_BITS:
        return "GDDR6X"
    return next(name for limit, name in PIN_RATES if 2 * clock_hz < limit)


def _memory(m: Measurements) -> Iterator[Figure]:
    """Peak bandwidth, generation, channels and stacks: two bits per clock and pin."""
    d = m.device
    name = memory_standard(d.memory_bus_bits, d.memory_clock_hz)
    values = load_standard(name).values
    pins = int(values["hbm.pseudo_channels"]) * int(values["hbm.pseudo_channel_bits"])
    peak = 2 * d.memory_clock_hz * d.memory_bus_bits / 8
    rate = 2 * d.memory_clock_hz / 1e9
    bus = f"{d.memory_bus_bits} bit"
    yield measured(
        "hbm.bandwidth", f"{significant(peak / 1e9)}GB/s", f"device property, {bus} at {rate:.3g} Gbit/s", DEVICE
    )
    yield estimate("hbm.standard", name, f"by a bus of {bus} and {rate:.3g} Gbit/s per pin")
    yield measured(
        "hbm.channels", d.memory_bus_bits // pins, f"device property, {bus} / {pins} bit per channel", DEVICE
    )
    stack = STACK_BITS if d.memory_bus_bits >= WIDE_BUS_BITS else pins
    yield estimate("hbm.stacks", -(-d.memory_bus_bits // stack), f"{bus} / {stack} bit per stack, rounded up")


def _property(key: str, value: int) -> Figure:
    return measured(key, value, "device property", DEVICE)
