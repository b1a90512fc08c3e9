"""The compiled function for calls on PyTorch's tensors: built once from `fast_call.c`, then loaded.

The user's C compiler builds it, because a C extension fits one version of Python and a wheel of
this package fits all. It takes a second, and the result stays in the cache folder.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from types import ModuleType

from explorer.compile.compiler import KernelCache, cache_dir
from explorer.model.errors import ExplorerError
from explorer.system.user_files import read_bytes

SOURCE = Path(__file__).with_name("fast_call.c")

FLAGS = ("-O2", "-shared", "-fPIC")

COMPILERS = ("cc", "gcc", "clang")
"""Compilers that are searched, in this order, if CC names none."""

LONGEST_S = 60.0
"""Seconds after which a compiler is stopped. It takes 0.5 s."""

_MAX_BYTES = 2**24
"""Largest library that is read; it has some 30 KB."""

_DIGEST_BYTES = hashlib.sha256().digest_size

NAME = "_fast_call"
"""The module's name, which is part of the name of its first function: PyInit__fast_call."""


class Unavailable(ExplorerError):
    """Raised if the function cannot be built or loaded on this machine; the text says why."""


def load() -> ModuleType:
    """Return the module, built unless the cache folder has it. Raises Unavailable.

    If several processes need it at the same time, one builds it and the others wait for it. A file
    that is damaged, belongs to another user or does not load is replaced. A folder that others can
    write is refused, because they could make this process run their code.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unavailable("this Python is free-threaded, and the function relies on the GIL")
    command, include = compiler(), sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        raise Unavailable(f"{include} has no Python.h; install Python's headers")
    key, named = _key(command, include), cache_dir() / "calls" / str(os.geteuid())
    file = f"{key}.so"
    with _private(named) as folder, KernelCache(folder).locked(key):
        if _is_whole(folder / file, key):
            with suppress(ImportError):
                return _loaded(folder / file, named / file)
        _store(folder / file, key, build(command, include))
        try:
            return _loaded(folder / file, named / file)
        except ImportError as error:
            raise Unavailable(f"what {command[0]} built cannot be loaded: {error}") from error


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


def compiler() -> tuple[str, ...]:
    """Return the command of the user's C compiler, with its path. Raises Unavailable."""
    named = shlex.split(os.environ.get("CC", ""))
    for name in [named[0]] if named else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return (path, *named[1:])
    raise Unavailable(
        f"no C compiler is found: {' or '.join(named[:1] or COMPILERS)}; install one, or name it "
        "in the environment variable CC"
    )


def build(command: tuple[str, ...], include: str) -> bytes:
    """Return the shared library that a compiler builds from the source. Raises Unavailable."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / f"{NAME}.so"
        whole = [*command, *FLAGS, f"-I{include}", "-o", str(output), str(SOURCE)]
        try:
            ran = subprocess.run(
                whole, capture_output=True, text=True, errors="replace", timeout=LONGEST_S
            )
            if ran.returncode == 0:
                return output.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{command[0]} failed: {error}") from error
        lines = [line for line in ran.stderr.splitlines() if "error" in line]
        message = (lines or ran.stderr.splitlines() or ["no message"])[0]
        raise Unavailable(f"{command[0]} failed with exit code {ran.returncode}: {message}")


def _key(command: tuple[str, ...], include: str) -> str:
    """Return a digest of everything that decides the library, with the compiler's size and time."""
    stat = Path(command[0]).stat()
    parts = [
        hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
        sysconfig.get_config_var("SOABI"),
        sysconfig.get_python_version(),
        include,
        command,
        (stat.st_size, stat.st_mtime_ns),
        FLAGS,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _digest(key: str, library: bytes) -> bytes:
    """Return the digest at the end of a library's file, which proves it undamaged."""
    return hashlib.sha256(key.encode() + library).digest()


def _is_whole(path: Path, key: str) -> bool:
    """Return whether a file is the undamaged library of a key, and this user's.

    Its last bytes are its digest, because a loader of ELF files ignores bytes after the sections.
    """
    try:
        content = read_bytes(path, most_bytes=_MAX_BYTES)
        is_own = path.stat().st_uid == os.geteuid()
    except Exception:  # a file that is missing or cannot be read
        return False
    library, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return is_own and digest == _digest(key, library)


def _store(path: Path, key: str, library: bytes) -> None:
    """Write a library's file atomically: readers see all of it or nothing. Raises Unavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(library + _digest(key, library))
        Path(file.name).replace(path)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from error


def _loaded(path: Path, named: Path) -> ModuleType:
    """Load a library as a module whose file is `named`. Raises ImportError."""
    loader = ExtensionFileLoader(NAME, str(path))
    spec = spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.__file__ = spec.origin = str(named)
    return module
