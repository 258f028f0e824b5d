"""Reads what a cubin (an ELF file) says of its kernels' parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

_SIZED_VALUE = 4
"""Attribute format: 16 bits of size, then that many bytes. The other formats hold their value in those 16 bits."""

_PARAMETER = 0x17
"""Attribute of one kernel parameter: index (4 bytes), ordinal (2), offset (2), and its size from bit 18 on (4)."""

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")


def parameter_bytes(cubin: bytes) -> Mapping[str, tuple[int, ...]]:
    """Kernel name → size of each of its parameters, in order."""
    return {
        name.removeprefix(".nv.info."): _parameters(content)
        for name, content in _sections(cubin)
        if name.startswith(".nv.info.")
    }


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_index = struct.unpack_from("<HHH", elf, 58)
    headers = [_SECTION_HEADER.unpack_from(elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, length, *_ in headers:
        yield elf[names + name : elf.index(b"\0", names + name)].decode(), elf[offset : offset + length]


def _parameters(info: bytes) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    position = 0
    while position + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, position)
        position += 4
        if form != _SIZED_VALUE:
            continue
        if attribute == _PARAMETER:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", info, position)
            sizes[ordinal] = packed >> 18
        position += length
    return tuple(sizes[ordinal] for ordinal in sorted(sizes))
