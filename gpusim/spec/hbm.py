"""The DRAM of a GPU: organisation, rates and timing constraints."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpusim.spec.checks import at_least, positive
from gpusim.spec.schema import choice, key, section, text
from gpusim.spec.units import parse_bandwidth, parse_cycles, parse_fraction, parse_size, parse_time_ns, parse_whole

__all__ = ["HbmSpec", "HbmTiming"]


@dataclass(frozen=True, slots=True)
class HbmTiming:
    """DRAM timing constraints of one pseudo-channel, nanoseconds, under their JEDEC names without the t.

    `ccd_s` and `ccd_l` follow the data rate (see `gpusim.spec.standards`); the others belong to the cells and stay.
    """

    rcd_read_ns: float = field(metadata=key("rcd_read", parse_time_ns))
    rcd_write_ns: float = field(metadata=key("rcd_write", parse_time_ns))
    rp_ns: float = field(metadata=key("rp", parse_time_ns))
    ras_ns: float = field(metadata=key("ras", parse_time_ns))
    rc_ns: float = field(metadata=key("rc", parse_time_ns))
    cl_ns: float = field(metadata=key("cl", parse_time_ns))
    cwl_ns: float = field(metadata=key("cwl", parse_time_ns))
    ccd_s_ns: float = field(metadata=key("ccd_s", parse_time_ns))
    ccd_l_ns: float = field(metadata=key("ccd_l", parse_time_ns))
    rrd_s_ns: float = field(metadata=key("rrd_s", parse_time_ns))
    rrd_l_ns: float = field(metadata=key("rrd_l", parse_time_ns))
    faw_ns: float = field(metadata=key("faw", parse_time_ns))
    wr_ns: float = field(metadata=key("wr", parse_time_ns))
    wtr_s_ns: float = field(metadata=key("wtr_s", parse_time_ns))
    wtr_l_ns: float = field(metadata=key("wtr_l", parse_time_ns))
    rtp_ns: float = field(metadata=key("rtp", parse_time_ns))
    rtw_ns: float = field(metadata=key("rtw", parse_time_ns))
    rfc_ab_ns: float = field(metadata=key("rfc_ab", parse_time_ns))
    rfc_pb_ns: float = field(metadata=key("rfc_pb", parse_time_ns))
    refi_ns: float = field(metadata=key("refi", parse_time_ns))

    def __post_init__(self) -> None:
        positive("hbm.timing", {"rc": self.rc_ns, "ccd_s": self.ccd_s_ns, "ccd_l": self.ccd_l_ns, "refi": self.refi_ns})
        if self.rfc_ab_ns >= self.refi_ns:
            raise ValueError(f"hbm.timing.rfc_ab {self.rfc_ab_ns:g} ns is not less than refi {self.refi_ns:g} ns")


@dataclass(frozen=True, slots=True)
class HbmSpec:
    """The DRAM.

    Attributes:
        standard: JEDEC family, `HBM3e` or `HBM2e`; gives organisation and timing unless they are set.
        size_bytes: memory that software can use.
        stacks: stacks on the package (information; `channels` says how much is enabled).
        channels: channels enabled on the GPU, all stacks together.
        channels_per_stack: channels a full stack has.
        pseudo_channels: pseudo-channels per channel.
        pseudo_channel_bits: data pins of a pseudo-channel.
        bank_groups: bank groups per pseudo-channel.
        banks_per_group: banks per bank group.
        row_bytes: row (page) of one bank of one pseudo-channel.
        access_bytes: one burst.
        bandwidth_bytes_per_s: peak of all channels together.
        latency_cycles: unloaded load-to-use of an L2 miss, SM cycles *in total* (SM to L2 to DRAM and back).
        mapping: how an address is spread over pseudo-channels, banks and rows (`gpusim.memory.hbm.mapping`).
        refresh: `all_bank` stops a pseudo-channel, `per_bank` one bank at a time, `none` nothing.
        write_queue: bursts a pseudo-channel's write queue holds; drained from 0.8 of them to 0.2.
        read_efficiency, write_efficiency: share of the bus's peak that reads alone, and writes alone, reach beside what
            timing rules and refresh of all banks cost.
        timing: constraints in nanoseconds.
    """

    standard: str = field(metadata=key("standard", text))
    size_bytes: int = field(metadata=key("size", parse_size))
    stacks: int = field(metadata=key("stacks", parse_whole))
    channels: int = field(metadata=key("channels", parse_whole))
    channels_per_stack: int = field(metadata=key("channels_per_stack", parse_whole))
    pseudo_channels: int = field(metadata=key("pseudo_channels", parse_whole))
    pseudo_channel_bits: int = field(metadata=key("pseudo_channel_bits", parse_whole))
    bank_groups: int = field(metadata=key("bank_groups", parse_whole))
    banks_per_group: int = field(metadata=key("banks_per_group", parse_whole))
    row_bytes: int = field(metadata=key("row_size", parse_size))
    access_bytes: int = field(metadata=key("access", parse_size))
    bandwidth_bytes_per_s: float = field(metadata=key("bandwidth", parse_bandwidth))
    latency_cycles: float = field(metadata=key("latency", parse_cycles))
    mapping: str = field(metadata=key("mapping", text))
    refresh: str = field(metadata=key("refresh", choice("all_bank", "per_bank", "none")))
    write_queue: int = field(metadata=key("write_queue", parse_whole))
    read_efficiency: float = field(metadata=key("read_efficiency", parse_fraction))
    write_efficiency: float = field(metadata=key("write_efficiency", parse_fraction))
    timing: HbmTiming = field(metadata=section("timing", HbmTiming))

    def __post_init__(self) -> None:
        at_least(1, "hbm", {"stacks": self.stacks, "channels": self.channels, "pseudo_channels": self.pseudo_channels})
        at_least(1, "hbm", {"bank_groups": self.bank_groups, "banks_per_group": self.banks_per_group})
        at_least(1, "hbm", {"pseudo_channel_bits": self.pseudo_channel_bits, "write_queue": self.write_queue})
        positive("hbm", {"read_efficiency": self.read_efficiency, "write_efficiency": self.write_efficiency})
        positive(
            "hbm", {"bandwidth": self.bandwidth_bytes_per_s, "access": self.access_bytes, "row_size": self.row_bytes}
        )
        if self.row_bytes % self.access_bytes:
            raise ValueError(f"hbm.row_size {self.row_bytes} is not a multiple of hbm.access {self.access_bytes}")

    @property
    def pseudo_channels_total(self) -> int:
        """Independent pseudo-channels of the GPU."""
        return self.channels * self.pseudo_channels

    @property
    def banks(self) -> int:
        """Banks of one pseudo-channel."""
        return self.bank_groups * self.banks_per_group

    @property
    def bus_bits(self) -> int:
        """Width of the memory bus, bits."""
        return self.pseudo_channels_total * self.pseudo_channel_bits

    @property
    def pseudo_channel_bytes_per_s(self) -> float:
        """Peak of one pseudo-channel, bytes/s."""
        return self.bandwidth_bytes_per_s / self.pseudo_channels_total

    @property
    def burst_ns(self) -> float:
        """Time that one access occupies the data bus of its pseudo-channel."""
        return self.access_bytes / self.pseudo_channel_bytes_per_s * 1e9
