"""Files that this program wrote: they alone are replaced when a page, picture or result is written.

A page and an SVG say in their metadata which program wrote them. Results are known by their keys. A
PNG has no mark: any other PNG is replaced by one.
"""

from pathlib import Path

from explorer import __version__
from explorer.model.errors import InvalidInput
from explorer.system.user_files import COMPARISON, JOURNEY, kind_of, open_regular, read_json

_PROGRAM = "softmax-explorer"

GENERATOR = f'<meta name="generator" content="{_PROGRAM} {__version__}">'
"""The mark in the head of a page."""

CREATOR = (
    '<metadata><dc:creator xmlns:dc="http://purl.org/dc/elements/1.1/">'
    f"{_PROGRAM} {__version__}</dc:creator></metadata>"
)
"""The mark in an SVG, after its first tag."""

PAGE, PICTURE = "a page that explorer report wrote", "a picture that explorer drew"
T4_RESULTS = "a T4 file that explorer recordings wrote"
KEPT_COMPARISON = "a comparison that explorer compare --save kept"
KEPT_JOURNEY = "a journey that explorer journey --save kept"

_MARKS: dict[str, tuple[tuple[bytes, ...], ...]] = {
    PAGE: ((f'<meta name="generator" content="{_PROGRAM} '.encode(),),),
    PICTURE: ((b"<svg", f">{_PROGRAM} ".encode(), b"</dc:creator>"), (b"\x89PNG\r\n",)),
    T4_RESULTS: ((b'"schema_version":', b'"threads_per_row":'),),
}
"""Of each kind, the words of which all stand in the first bytes of a file, by one way or another.

Another tuner's results in T4 have no `threads_per_row`.
"""

_HEAD_BYTES = 2048

_ANY_SIZE = 2**63
"""More bytes than a file can have: of a large one, too, only the first bytes are read."""


def check_replaceable(path: Path, kind: str, remedy: str) -> None:
    """Raise InvalidInput, which ends in `remedy`, if `path` has what is not of this kind.

    A file without a byte may be replaced by any kind.
    """
    if path.exists() and path.stat().st_size and not _is_of(path, kind):
        raise InvalidInput(f"{path} exists and is not {kind}; nothing was written: {remedy}")


def _is_of(path: Path, kind: str) -> bool:
    if kind in _MARKS:
        with open_regular(path, most_bytes=_ANY_SIZE) as file:
            head = file.read(_HEAD_BYTES)
        return any(all(word in head for word in words) for words in _MARKS[kind])
    try:
        kept = kind_of(read_json(path, ""))
    except InvalidInput:
        return False
    return kept == {KEPT_COMPARISON: COMPARISON, KEPT_JOURNEY: JOURNEY}[kind]
