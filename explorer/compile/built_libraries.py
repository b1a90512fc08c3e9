"""Shared libraries that a compiler on this machine builds: built once, kept in the cache folder."""

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TypeVar

from explorer.compile.compiler import KernelCache, cache_dir
from explorer.model.errors import ExplorerError
from explorer.system.user_files import read_bytes

Loaded = TypeVar("Loaded")

_MAX_BYTES = 2**24
"""Largest library that is read; FlashInfer's kernels of one type and head dimension have 2 MB."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class Unavailable(ExplorerError):
    """Raised if a library cannot be built or loaded on this machine; the text says why."""


def load_kept(key: str, build: Callable[[], bytes], load: Callable[[Path, Path], Loaded]) -> Loaded:
    """Return what `load` makes of the library of a key, built unless the cache folder has it.

    `load` takes the path of the library's file, and the name of that file in the cache; it raises
    ImportError for a file that is no library. Raises Unavailable.

    If several processes need it at the same time, one builds it and the others wait for it. A file
    that is damaged, belongs to another user or does not load is replaced. A folder that others can
    write is refused, because they could make this process run their code.
    """
    named, file = cache_dir() / "calls" / str(os.geteuid()), f"{key}.so"
    with _private(named) as folder, KernelCache(folder).locked(key):
        if is_whole(folder / file, key):
            with suppress(ImportError):
                return load(folder / file, named / file)
        store(folder / file, key, build())
        try:
            return load(folder / file, named / file)
        except ImportError as error:
            raise Unavailable(f"what was built cannot be loaded: {error}") from error


@contextmanager
def _private(folder: Path) -> Iterator[Path]:
    """Open a folder that no other user can write, created unless it exists. Raises Unavailable.

    A cache folder may be shared, and anybody who can write it could replace the library between its
    check and its loading. So the folder is opened once, and its path here is that of the open
    folder, which later changes of its name do not affect. A process that loads the library twice,
    as tests do, may get the first one again, because loaders identify libraries by their path.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from error
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise Unavailable(
                f"other users can write {folder}, and so could have their code run; remove it, or "
                "set EXPLORER_CACHE_DIR to a folder of your own"
            )
        yield Path(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


def built(command: Sequence[str], longest_s: float) -> bytes:
    """Return the shared library that a compiler's command builds. Raises Unavailable.

    The compiler is stopped after `longest_s` seconds.
    """
    with TemporaryDirectory() as folder:
        output = Path(folder) / "library.so"
        whole = [*command, "-o", str(output)]
        try:
            ran = subprocess.run(
                whole, capture_output=True, text=True, errors="replace", timeout=longest_s
            )
            if ran.returncode == 0:
                return output.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{command[0]} failed: {error}") from error
        lines = [line for line in ran.stderr.splitlines() if "error" in line]
        message = (lines or ran.stderr.splitlines() or ["no message"])[0]
        raise Unavailable(f"{command[0]} failed with exit code {ran.returncode}: {message}")


def digest(key: str, library: bytes) -> bytes:
    """Return the digest at the end of a library's file, which proves it undamaged."""
    return hashlib.sha256(key.encode() + library).digest()


def is_whole(path: Path, key: str) -> bool:
    """Return whether a file is the undamaged library of a key, and this user's.

    Its last bytes are its digest, because a loader of ELF files ignores bytes after the sections.
    """
    try:
        content = read_bytes(path, most_bytes=_MAX_BYTES)
        is_own = path.stat().st_uid == os.geteuid()
    except Exception:  # a file that is missing or cannot be read
        return False
    library, kept = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return is_own and kept == digest(key, library)


def store(path: Path, key: str, library: bytes) -> None:
    """Write a library's file atomically: readers see all of it or nothing. Raises Unavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(library + digest(key, library))
        Path(file.name).replace(path)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from error
