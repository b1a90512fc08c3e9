"""Files that a user names, read within a limit and written atomically; and shipped folders.

A path may name a pipe, a device or a folder, a file of gigabytes, or one that cannot be read. Each
function then raises InvalidInput, which names the path and says what to do.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT, ENOSPC
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import Any, BinaryIO, TypeVar

from explorer import __version__
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import parse_json, shown

StrPath = str | os.PathLike[str]

Saved = TypeVar("Saved")

MAX_TEXT_BYTES = 16 * 2**20
"""Largest text file that is read. The largest saved result has 0.3 MB, an emitted file 40 kB."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def named_file(name: str, value: Any, what: str) -> Path:
    """Return the path that an argument of a call names; `what` says in errors what it must be.

    Raises InvalidInput for a value that is neither text nor a path, and for an empty text, which
    would be the current folder.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"{name} is {shown(value)}; it must be {what}")
    return Path(text)


_CUDA_FILE = re.compile(r"(.+\.cu)(?::([\w:<>, ]+))?")


def cuda_file(named: str) -> tuple[Path, str | None] | None:
    """Return the file, and the kernel if there is one, that FILE.cu or FILE.cu:KERNEL names.

    None for other text, so that a file is told from a kernel's name.
    """
    match = _CUDA_FILE.fullmatch(named)
    return (Path(match[1]), match[2]) if match else None


def shipped_folder(name: str, in_checkout: str) -> Path:
    """Return a folder that is shipped with the package, or beside it in a checkout.

    `name` is the folder's name in an installed package, `in_checkout` its path in the repository.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / in_checkout


def shipped_results() -> dict[str, Path]:
    """Return the comparisons and journeys that come with the package, by name."""
    folder = shipped_folder("results", "studies/results")
    found = (path for kind in ("compare-*", "journey-*") for path in folder.glob(f"{kind}.json"))
    return {path.stem: path for path in sorted(found)}


def kept_file(named: str | Path) -> Path:
    """Return the file of a result that is named by its path, or by the name of a shipped one."""
    path = Path(named)
    return path if is_there(path) else shipped_results().get(str(named), path)


STUDIES = Path("studies")
"""The folder of results in a checkout, and in any folder in which a user has made one."""


def studies_folder() -> Path:
    """Return the folder of the user's studies, recordings, tables and journeys.

    It is `studies` in the current folder if that exists, as in a checkout. Otherwise it is
    softmax-explorer in the user's data folder (XDG), so that commands in different folders share
    their results.
    """
    if os.path.lexists(STUDIES):
        return STUDIES
    named = os.environ.get("XDG_DATA_HOME", "")
    try:
        data = Path(named) if named.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError:  # a user without a home
        return STUDIES
    return data / "softmax-explorer"


GENERATED = "generated"
"""The folder, in the current one, of emitted files for which no name is given."""


def template_dir() -> Path:
    """Return the folder of templates."""
    return shipped_folder("templates", "templates")


@contextmanager
def open_regular(
    path: Path, *, most_bytes: int, remedy: str = "name another file"
) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most_bytes` bytes for reading, without waiting for a writer.

    Raises InvalidInput, which ends in `remedy`, for a folder, a pipe, a device and a socket, for a
    larger file, and for errors of the system when the file is opened or read.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidInput(f"{path} cannot be read: it is {_kind(status)}; {remedy}")
            if status.st_size > most_bytes:
                raise InvalidInput(
                    f"{path} cannot be read: it has {status.st_size} bytes, and at most "
                    f"{most_bytes} are read; {remedy}"
                )
            yield file
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {_reason(error)}; {remedy}") from None


def read_bytes(path: Path, *, most_bytes: int, remedy: str = "name another file") -> bytes:
    """Return the bytes of a regular file. Raises InvalidInput as `open_regular` does."""
    with open_regular(path, most_bytes=most_bytes, remedy=remedy) as file:
        content = file.read(most_bytes + 1)  # a file may grow, and files in /proc have size 0
    if len(content) > most_bytes:
        raise InvalidInput(f"{path} cannot be read: it has more than {most_bytes} bytes; {remedy}")
    return content


def read_text(
    path: Path, *, most_bytes: int = MAX_TEXT_BYTES, remedy: str = "name another file"
) -> str:
    """Return the text of a regular UTF-8 file. Raises InvalidInput as `open_regular` does."""
    content = read_bytes(path, most_bytes=most_bytes, remedy=remedy)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} cannot be read: it is not text in UTF-8 from byte {error.start} on; {remedy}"
        ) from None


def is_there(path: Path) -> bool:
    """Return whether a path exists, a dangling link included."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def read_json(path: Path, remedy: str) -> Any:
    """Return the values of a JSON file. Raises InvalidInput, which ends in `remedy`."""
    text = read_text(path, remedy=remedy)
    if not text.strip():
        raise InvalidInput(f"{path} is empty; {remedy}")
    try:
        return parse_json(text, str(path), of="file")
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {remedy}") from None


COMPARISON, JOURNEY, TUNED_TABLE = "comparison", "journey", "tuned table"

_SHOWN_BY = {
    COMPARISON: "explorer compare --from",
    JOURNEY: "explorer journey --from",
    TUNED_TABLE: "explorer table show",
}


def kind_of(values: Any) -> str:
    """Return what kind of result a file's values are: comparison, journey, tuned table or ""."""
    if not isinstance(values, dict):
        return ""
    if "comparisons" in values:
        return COMPARISON
    if "steps" in values:
        return JOURNEY
    return TUNED_TABLE if "configs" in values and "gpu" in values else ""


def check_kind(path: Path, values: Any, wanted: str) -> None:
    """Raise InvalidInput for a result of another kind, with the command that shows that kind."""
    kind = kind_of(values)
    if kind and kind != wanted:
        raise InvalidInput(
            f"{path} is a {kind}, not a {wanted}; show it with {_SHOWN_BY[kind]} {quote(str(path))}"
        )


_PROGRAM = "softmax-explorer"

MADE_BY = f"{_PROGRAM} {__version__}"
"""The program that wrote a page or a picture, as their metadata say."""

PAGE, PICTURE = "a page that explorer report wrote", "a picture that explorer drew"
T4_RESULTS = "a T4 file that explorer recordings wrote"

_MARKS: dict[str, tuple[tuple[bytes, ...], ...]] = {
    PAGE: ((f'<meta name="generator" content="{_PROGRAM} '.encode(),),),
    PICTURE: ((b"<svg", f">{_PROGRAM} ".encode(), b"</dc:creator>"), (b"\x89PNG\r\n",)),
    T4_RESULTS: ((b'"schema_version":', b'"threads_per_row":'),),
}
"""The words of which all stand in the first bytes of a file of a kind, by one way or another.

A PNG has no mark: any other PNG is replaced by one. Another tuner's results in T4 have no
`threads_per_row`.
"""

_HEAD_BYTES = 2048

_ANY_SIZE = 2**63
"""More bytes than a file can have: of a large one, too, only the first bytes are read."""


def check_replaceable(path: Path, kind: str, remedy: str) -> None:
    """Raise InvalidInput, which ends in `remedy`, unless a file of this kind can be written.

    Only a file that this program wrote, of the same kind, is replaced, and one without a byte.
    """
    check_writable(path, remedy)
    if path.exists() and path.stat().st_size and not _is_of(path, kind):
        command = kind if kind in _MARKS else f"a {kind} that explorer {_SAVED_BY[kind]} kept"
        raise InvalidInput(f"{path} exists and is not {command}; nothing was written: {remedy}")


_SAVED_BY = {COMPARISON: "compare --save", JOURNEY: "journey --save"}


def _is_of(path: Path, kind: str) -> bool:
    if kind in _MARKS:
        with open_regular(path, most_bytes=_ANY_SIZE) as file:
            head = file.read(_HEAD_BYTES)
        return any(all(word in head for word in words) for words in _MARKS[kind])
    try:
        return kind_of(read_json(path, "")) == kind
    except InvalidInput:
        return False


def read_kept(path: Path, read: Callable[[Any], Saved], what: str, command: str) -> Saved:
    """Read a result, of the kind that `what` names, which `explorer COMMAND --save` wrote as JSON.

    Raises InvalidInput for a file without such a result.
    """
    path = kept_file(path)
    values = read_json(path, f"name a file that explorer {command} --save wrote")
    check_kind(path, values, what)
    try:
        return read(values)
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} keeps no {what} of this version: {error}; name a file that "
            f"explorer {command} --save wrote"
        ) from None


def write_file(path: Path, content: str | bytes, remedy: str = "name another file") -> None:
    """Write a file atomically: `path` has all of `content`, or its old one.

    A folder that is not there is made only in the studies' folder and in generated/.

    The content is written to a temporary file in the same folder, which is then renamed. A link to
    a file is followed. Raises InvalidInput, which ends in `remedy`, for a pipe, a device or a
    folder, for a folder that cannot be written, and for a full disk.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = _target(path, remedy)
        with _partial(target) as (file, partial):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            partial.replace(target)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be written: {_reason(error)}; {remedy}") from None


def append_line(path: Path, line: str, remedy: str = "name another file") -> None:
    """Append a line to a file, which is created if missing, and flush it to the disk.

    Raises InvalidInput, which ends in `remedy`, if the line cannot be written whole, such as on a
    full disk; the file is then as before.
    """
    try:
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            data = f"{line}\n".encode()
            try:
                if file.write(data) < len(data):
                    raise OSError(ENOSPC, os.strerror(ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be written: {_reason(error)}; {remedy}") from None


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that `append_line` wrote; an empty list if there is no file.

    A partial last line, which a killed process leaves, is cut off from the file. Raises
    InvalidInput for a file that cannot be read.
    """
    if not is_there(path):
        return []
    remedy = "move it away to begin anew"
    text = read_text(path, remedy=remedy)
    *whole, torn = text.split("\n")
    if torn:
        write_file(path, text.removesuffix(torn), remedy)
    return whole


def read_lines(path: Path, read: Callable[[Any], Saved], what: str) -> list[Saved]:
    """Return what `read` makes of each line of JSON that `append_line` wrote.

    Raises InvalidInput for a line that is no `what`, or for a file that cannot be read.
    """
    found = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            found.append(read(parse_json(line, "it", of="line")))
        except InvalidInput as error:
            raise InvalidInput(
                f"{path}, line {number}, is no {what} of this version: {error}; move the file "
                "away to begin anew"
            ) from None
    return found


def is_writable_folder(folder: Path) -> bool:
    """Return whether files can be written in a folder, which may have to be created."""
    existing = next((path for path in (folder, *folder.parents) if is_there(path)), folder)
    return os.access(existing, os.W_OK) and existing.is_dir()


def check_writable(path: Path, remedy: str = "name another file") -> None:
    """Check, before a long measurement, that a file can be written; make its folder if it is ours.

    Raises InvalidInput as `write_file` does.
    """
    try:
        with _partial(_target(path, remedy)):
            pass
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be written: {_reason(error)}; {remedy}") from None


def _target(path: Path, remedy: str) -> Path:
    """Return the file to be written: `path`, or the file that it links to."""
    target = Path(os.path.realpath(path))
    try:
        status = target.lstat()
    except FileNotFoundError:
        return target
    if stat.S_ISLNK(status.st_mode):
        raise InvalidInput(f"{path} cannot be written: its links form a loop; {remedy}")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{path} cannot be written: it is {_kind(status)}; {remedy}")
    if not os.access(target, os.W_OK):
        raise InvalidInput(f"{path} cannot be written: it is read-only; {remedy}")
    return target


@contextmanager
def _partial(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new file beside `target`; it is deleted in the end unless it was renamed."""
    _make_folder(target.parent)
    partial = target.with_name(f".{token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file, partial
    finally:
        partial.unlink(missing_ok=True)


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


def _reason(error: Exception) -> str:
    """Return the system's own description of an error."""
    return getattr(error, "strerror", None) or str(error)


def _make_folder(folder: Path) -> None:
    """Make a folder, if it lies in one of ours. Raises FileNotFoundError for another's.

    A folder that a user named and that is not there is a slip of the pen more often than a wish.
    """
    if folder.is_dir():
        return
    for ours in (studies_folder(), STUDIES, Path(GENERATED)):
        if folder.is_relative_to(os.path.realpath(ours)):
            folder.mkdir(parents=True, exist_ok=True)
            return
    raise FileNotFoundError(ENOENT, f"there is no folder {folder}")
