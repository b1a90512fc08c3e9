"""Files that this program wrote: they alone are replaced when a page, picture or result is written.

A page and a picture say in their metadata which program wrote them. Results are told by their keys.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from explorer import __version__
from explorer.model.errors import InvalidInput
from explorer.system.user_files import COMPARISON, JOURNEY, kind_of, open_regular, read_json

_PROGRAM = "softmax-explorer"

# ------------------------------------------------------------------ marks

GENERATOR = f'<meta name="generator" content="{_PROGRAM} {__version__}">'
"""What the head of a page says of the program that wrote it."""

_CREATOR = (
    '<metadata><dc:creator xmlns:dc="http://purl.org/dc/elements/1.1/">'
    f"{_PROGRAM} {__version__}</dc:creator></metadata>"
)

_PNG_START = 33
"""Bytes of a PNG's signature and its first chunk, IHDR, after which other chunks may stand."""


def marked_svg(svg: str) -> str:
    """Return a picture whose metadata name this program as its creator."""
    tag_end = svg.index(">") + 1
    return svg[:tag_end] + _CREATOR + svg[tag_end:]


def marked_png(png: bytes) -> bytes:
    """Return a picture whose text `Software` names this program."""
    content = b"tEXt" + f"Software\0{_PROGRAM} {__version__}".encode()
    length, checksum = len(content) - 4, zlib.crc32(content)
    chunk = length.to_bytes(4, "big") + content + checksum.to_bytes(4, "big")
    return png[:_PNG_START] + chunk + png[_PNG_START:]


# ------------------------------------------------------------------ kinds of files

_HEAD_BYTES = 2048
"""Of a page, a picture and a T4 file, the bytes that hold its mark."""

_ANY_SIZE = 2**63
"""More bytes than a file can have: of a large one, too, only the first bytes are read."""


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A kind of file that this program writes."""

    what: str
    """The kind in words, with its article."""
    is_one: Callable[[Path], bool]
    """Whether a file that has bytes is of this kind."""


def _has_in_head(path: Path, *choices: tuple[str, ...]) -> bool:
    """Whether the first bytes of a file have all of the words of one of the choices."""
    with open_regular(path, most_bytes=_ANY_SIZE) as file:
        head = file.read(_HEAD_BYTES)
    return any(all(word.encode() in head for word in words) for words in choices)


def _is_page(path: Path) -> bool:
    return _has_in_head(path, (f'<meta name="generator" content="{_PROGRAM} ',))


def _is_picture(path: Path) -> bool:
    """Whether a file is one of our pictures, an SVG or a PNG."""
    svg = ("<svg", f">{_PROGRAM} ", "</dc:creator>")
    return _has_in_head(path, svg, ("PNG", f"tEXtSoftware\0{_PROGRAM} "))


def _is_t4(path: Path) -> bool:
    """Whether a file is in T4 and has configs of ours: another tuner's results have none."""
    return _has_in_head(path, ('"schema_version":', '"threads_per_row":'))


def _keeps(kind: str, path: Path) -> bool:
    try:
        return kind_of(read_json(path, "")) == kind
    except InvalidInput:
        return False


PAGE = OwnFile("a page that explorer report wrote", _is_page)
PICTURE = OwnFile("a picture that explorer drew", _is_picture)
T4_RESULTS = OwnFile("a T4 file that explorer recordings wrote", _is_t4)
KEPT_COMPARISON = OwnFile(
    "a comparison that explorer compare --save kept", partial(_keeps, COMPARISON)
)
KEPT_JOURNEY = OwnFile("a journey that explorer journey --save kept", partial(_keeps, JOURNEY))


def check_replaceable(path: Path, kind: OwnFile, remedy: str) -> None:
    """Raise InvalidInput, which ends in `remedy`, if `path` has what is not of this kind.

    A file without a byte may be replaced by any kind.
    """
    if not path.exists() or path.stat().st_size == 0 or kind.is_one(path):
        return
    raise InvalidInput(f"{path} exists and is not {kind.what}; nothing was written: {remedy}")
