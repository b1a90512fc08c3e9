"""What ptxas says of a kernel's resources, and how long its code is."""

import re
import struct

from explorer.outcome import Resources

_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def parse_resources(log: str, cubin: bytes) -> Resources:
    """Registers, static shared memory, spills and stack from the log; code from the cubin."""
    registers, shared, stack = _REGISTERS.search(log), _SHARED.search(log), _STACK.search(log)
    if registers is None:
        raise ValueError(f"ptxas said nothing of registers: {log!r}")
    frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
    return Resources(
        registers=int(registers[1]),
        static_shared_bytes=int(shared[1]) if shared else 0,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=frame,
        code_bytes=code_bytes(cubin),
    )


def code_bytes(cubin: bytes) -> int:
    """Bytes of machine code: the .text sections of a 64-bit ELF file (System V ABI, figure 4-8)."""
    (headers,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [_section(cubin, headers + i * entry_size) for i in range(count)]
    _, names_offset, _ = sections[names_index]
    total = 0
    for name, _, size in sections:
        if cubin.startswith(b".text.", names_offset + name):
            total += size
    return total


def _section(elf: bytes, at: int) -> tuple[int, int, int]:
    """Name's place, file offset and size of the section whose header is at `at`."""
    (name,) = struct.unpack_from("<I", elf, at)
    offset, size = struct.unpack_from("<QQ", elf, at + 0x18)
    return name, offset, size
