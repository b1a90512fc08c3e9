"""The resources of a kernel, read from its cubin and ptxas's log, and what a GPU makes of them."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from explorer.codegen.variant import Launch
from explorer.model.gpu_spec import GpuSpec, with_residency
from explorer.model.outcome import Resources

# ------------------------------------------------------------------ cubin


_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT
_FRAME_SIZE = 0x11  # EIATTR_FRAME_SIZE
_SIZED_VALUE = 0x04  # EIFMT_SVAL: two bytes of length, then the value
_RESERVED_SHARED = 1024  # counted into a kernel's shared memory from sm_90 on
_RESERVED_SECTION = ".nv.shared.reserved"  # where there is one, the above is counted


@dataclass(frozen=True, slots=True)
class CubinFacts:
    """Registers a thread, and bytes of static shared memory, stack and code, of a kernel."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    code_bytes: int


def read_cubin(cubin: bytes) -> CubinFacts:
    """Read a cubin with one kernel; raises ValueError if it is none."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError("not an ELF file")
    sections = cubin_sections(cubin)
    info = next((data for name, data, _ in sections if name == ".nv.info"), b"")
    reserved = any(name.startswith(_RESERVED_SECTION) for name, _, _ in sections)
    shared = sum(
        size - (_RESERVED_SHARED if reserved else 0)
        for name, _, size in sections
        if name.startswith(".nv.shared.") and not name.startswith(_RESERVED_SECTION)
    )
    attributes = _attributes(info)
    return CubinFacts(
        registers=attributes.get(_REGISTER_COUNT, 0),
        shared_bytes=shared,
        stack_bytes=attributes.get(_FRAME_SIZE, 0),
        code_bytes=sum(size for name, _, size in sections if name.startswith(".text.")),
    )


def cubin_sections(elf: bytes) -> list[tuple[str, bytes, int]]:
    """Return name, data and size of each section of a 64-bit ELF (System V ABI, figure 4-8)."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    raw = [_header(elf, headers + i * entry_size) for i in range(count)]
    names = raw[names_index][1]
    sections = []
    for name_at, offset, size in raw:
        end = elf.index(b"\0", names + name_at)
        sections.append((elf[names + name_at : end].decode(), elf[offset : offset + size], size))
    return sections


def _header(elf: bytes, at: int) -> tuple[int, int, int]:
    """Return place of the name, file offset and size of the section with its header at `at`."""
    (name,) = struct.unpack_from("<I", elf, at)
    offset, size = struct.unpack_from("<QQ", elf, at + 0x18)
    return name, offset, size


def _attributes(info: bytes) -> dict[int, int]:
    """Return the greatest number of each attribute whose value is (symbol, number), by code."""
    numbers: dict[int, int] = {}
    at = 0
    while at + 4 <= len(info):
        form, code, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED_VALUE:
            if size == 8:
                (number,) = struct.unpack_from("<I", info, at + 4)
                numbers[code] = max(numbers.get(code, 0), number)
            at += size
    return numbers


# ------------------------------------------------------------------ resources


_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def kernel_resources(log: str, cubin: bytes) -> Resources:
    """Return the resources of the kernel in `cubin`; raises ValueError if it is no cubin.

    They are 0 for an empty cubin, since kernels of a virtual architecture, such as compute_90, are
    PTX alone.

    NVRTC 13.0 can lose the log when several threads compile. So if the log has no line for this
    stack frame, the whole frame counts as spilled: our kernels have no other use for one.
    """
    if not cubin:
        return Resources(registers=0)
    facts = read_cubin(cubin)
    stores = loads = facts.stack_bytes
    frames = {int(m[1]): (int(m[2]), int(m[3])) for m in _STACK.finditer(log)}
    if facts.stack_bytes in frames:
        stores, loads = frames[facts.stack_bytes]
    return Resources(
        registers=facts.registers,
        static_shared_bytes=facts.shared_bytes,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=facts.stack_bytes,
        code_bytes=facts.code_bytes,
    )


# ------------------------------------------------------------------ on a GPU


def resources_on(gpu: GpuSpec | None, launches: Sequence[Launch], compiled: Resources) -> Resources:
    """Return a kernel's resources with the shared memory of its launches, and its residency.

    The residency is not worked out where the limits of the GPU are not known.
    """
    first = launches[0]
    dynamic = max(launch.shared_bytes for launch in launches)
    whole = replace(compiled, dynamic_shared_bytes=dynamic)
    if gpu is None:
        return whole
    return with_residency(whole, first.block, first.grid_on(gpu.sm_count), gpu)


def exceeded_resource(resources: Resources, launches: Sequence[Launch], gpu: GpuSpec) -> str | None:
    """Return a sentence on the first limit that a kernel exceeds, or None."""
    if resources.shared_bytes > gpu.shared_per_block_bytes:
        return (
            f"a block needs {resources.shared_bytes} bytes of shared memory; {gpu.name} has "
            f"{gpu.shared_per_block_bytes}"
        )
    block = max(launch.block for launch in launches)
    # Registers are allocated to warps in units of 256.
    allocated = -(-resources.registers * 32 // 256) * 256 * (block // 32)
    if allocated > gpu.registers_per_sm:
        return f"a block needs {allocated} registers; an SM has {gpu.registers_per_sm}"
    return None
