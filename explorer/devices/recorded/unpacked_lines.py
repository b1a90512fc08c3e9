"""The lines of a gzip file, unpacked as they are asked for, within bounds."""

import zlib
from collections.abc import Iterator
from typing import BinaryIO

MAX_UNPACKED_BYTES = 128 * 2**20
"""Where unpacking stops. The 1700 kernels of a shipped recording take 1.5 MB: this is 150,000."""

MAX_LINE_BYTES = 2**20
"""Largest line. A comparison of 48 kernels takes 36 kB, a kernel 1 kB and its compiler's log."""

_CHUNK_BYTES = 2**16
_GZIP = 16 + zlib.MAX_WBITS
"""What tells zlib to read a gzip header, and to check the sum and the length at the end."""


class DamagedFile(Exception):  # the reader of a recording says it with the file's name
    """A gzip file that is none, ends early, is too large, or does not agree with its check sum."""


def unpacked_lines(file: BinaryIO) -> Iterator[bytes]:
    """Give the lines of a gzip file of one member, without their ends.

    No more than MAX_LINE_BYTES are held. Whoever takes all lines knows that the file is whole: its
    check sum is compared after the last. Raises DamagedFile.
    """
    waiting, unpacked = b"", 0
    for part in _parts(file):
        unpacked += len(part)
        if unpacked > MAX_UNPACKED_BYTES:
            raise DamagedFile(f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        *lines, waiting = (waiting + part).split(b"\n")
        if max(map(len, [*lines, waiting])) > MAX_LINE_BYTES:
            raise DamagedFile(f"a line has more than {MAX_LINE_BYTES} bytes")
        yield from lines
    if waiting:
        yield waiting


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """Give what the file unpacks to, in parts of at most _CHUNK_BYTES."""
    unpacker = zlib.decompressobj(_GZIP)
    packed = file.read(_CHUNK_BYTES)
    if not packed.startswith(b"\x1f\x8b"):
        raise DamagedFile("it is no gzip file" if packed else "it is empty")
    while not unpacker.eof:
        if not packed:
            raise DamagedFile("it ends early")
        try:
            yield unpacker.decompress(packed, _CHUNK_BYTES)
        except zlib.error as error:
            raise DamagedFile(f"its compressed data are damaged ({error})") from None
        packed = unpacker.unconsumed_tail or file.read(_CHUNK_BYTES)
    if unpacker.unused_data or packed:
        raise DamagedFile("something follows the end of its compressed data")
