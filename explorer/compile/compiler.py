"""Source to kernel by NVRTC: headers, options, the compiler, its cache on disk and its pool."""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from explorer.compile.resources import kernel_resources
from explorer.compile.usual_headers import HEADERS, PRELUDE, names_usual
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.outcome import Resources
from explorer.system.processes import usable_cores
from explorer.system.user_files import open_regular


@dataclass(frozen=True, slots=True)
class Kernel:
    """Machine code for one architecture, with the PTX it was made from and ptxas's log."""

    cubin: bytes
    ptx: str
    log: str
    resources: Resources


# ------------------------------------------------------------------ headers


@cache
def include_dir() -> Path | None:
    """Return the folder with cuda_fp16.h in the nvidia-cuda-runtime wheel, or None without it.

    A toolkit in /usr/local is not searched, because its headers with another NVRTC fail late.
    """
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in sorted(Path(root).glob("cu1[3-9]/include"), reverse=True):
            if (folder / "cuda_fp16.h").is_file():
                return folder
    return None


def _folders(include: Path | None) -> list[Path]:
    """Return the folders to search for headers: CUDA's, and CCCL's with CUB if it is installed."""
    folders = [] if include is None else [include, include / "cccl"]
    return [folder for folder in folders if folder.is_dir()]


# ------------------------------------------------------------------ NVRTC


SOURCE_NAME = "softmax.cu"
"""Name of the input that NVRTC is given, which its log repeats."""


class CompileFailure(Exception):  # an outcome of a variant, not an error of the user's
    """NVRTC or ptxas refused the source; the message is the log's first error."""

    def __init__(self, log: str) -> None:
        self.log = log
        lines = [line for line in log.splitlines() if "error" in line] or log.splitlines()
        first = lines[0].strip() if lines else "no log"
        lacks_cccl = re.search(r'cannot open source file "(?:nv|cuda|cub|thrust)/', first)
        remedy = "; pip install nvidia-cuda-cccl brings these headers" if lacks_cccl else ""
        super().__init__(first + remedy)


@cache
def nvrtc_version() -> str:
    """Return NVRTC's version, such as 13.0; raises ExplorerError where it cannot be loaded."""
    nvrtc = _load()
    major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def compile_source(source: str, options: tuple[str, ...]) -> Kernel:
    """Compile CUDA C++ for the architecture in `options`; raises CompileFailure with the log.

    A source that names something of the C library has `usual_headers` in its place, whose texts
    are not in the cache's key: another text needs another `_FORMAT`.
    """
    nvrtc = _load()
    headers: dict[str, str] = {}
    if names_usual(source):
        headers, options = HEADERS, (*options, f"--pre-include={PRELUDE}")
    texts, names = ([*map(str.encode, side)] for side in (headers.values(), headers))
    program = _checked(
        nvrtc.nvrtcCreateProgram(source.encode(), SOURCE_NAME.encode(), len(names), texts, names)
    )
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileFailure(log.strip() or str(status))
        log = log.strip("\0\n ")
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return Kernel(cubin, ptx.rstrip(b"\0").decode(), log, kernel_resources(log, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _load() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the loader raises whatever its platform does
        raise ExplorerError(
            f"NVRTC cannot be loaded ({error}); install it: pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != 0:
        raise ExplorerError(f"NVRTC failed: {status}")
    return values[0] if len(values) == 1 else values


def _text(size_of: Any, read: Any, program: Any) -> bytes:
    buffer: bytes = b"\0" * _checked(size_of(program))
    _checked(read(program, buffer))
    return buffer.rstrip(b"\0") if read.__name__.endswith("Log") else buffer


# ------------------------------------------------------------------ cache


_FORMAT = 3

_MAX_FILE_BYTES = 64 * 2**20
"""Largest file of a kernel that is read. The largest kernel takes 0.1 MB."""


def cache_dir() -> Path:
    """Return `$EXPLORER_CACHE_DIR`, else softmax-explorer in the user's cache folder (XDG)."""
    named = os.environ.get("EXPLORER_CACHE_DIR")
    if named:
        return Path(named)
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(named or Path.home() / ".cache") / "softmax-explorer"
    except RuntimeError:  # a user without a home: nothing can be written below this
        return Path(os.devnull) / "softmax-explorer"


_CACHED = ("kernels/??/*.zip", "problems/??/*.json", "calls/*/*.so")
"""Files of the cache: compiled kernels, what calls of a problem need, and built extensions."""


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder of the cache, and its files; no others that lie in it."""

    path: Path
    files: tuple[Path, ...]
    bytes: int
    """The size of the files."""

    @classmethod
    def of_user(cls) -> "CacheFolder":
        """Return what the cache of this user has at present."""
        folder = cache_dir()
        files = sorted(path for pattern in _CACHED for path in folder.glob(pattern))
        return cls(
            folder, tuple(files), sum(file.stat().st_size for file in files if file.exists())
        )

    def clear(self) -> None:
        """Delete the files. Raises InvalidInput for one that cannot be deleted."""
        try:
            for file in self.files:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{file} cannot be deleted: {error.strerror}; change its permissions, or delete "
                f"{self.path} by hand"
            ) from None

    def __str__(self) -> str:
        """Return how many files it has, and their size."""
        number = len(self.files)
        return f"{number} file{'' if number == 1 else 's'}, {self.bytes / 1e6:.1f} MB"


class KernelCache:
    """A folder of compiled kernels. An unwritable folder or a damaged file is not an error."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_dir() / "kernels"

    def key(self, source: str, options: tuple[str, ...], version: str) -> str:
        """Return the digest of all that decides a kernel's code; it names the kernel's file."""
        text = json.dumps([_FORMAT, source, options, version])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def load(self, key: str) -> Kernel | None:
        """Return the kernel stored under `key`, or None if its file is missing or damaged."""
        try:
            with (
                open_regular(self._path(key), most_bytes=_MAX_FILE_BYTES) as file,
                zipfile.ZipFile(file) as archive,
            ):
                cubin = archive.read("kernel.cubin")
                if archive.read("digest").decode() != _digest(key, cubin):
                    return None
                log = archive.read("ptxas.log").decode()
                return Kernel(
                    cubin=cubin,
                    ptx=archive.read("kernel.ptx").decode(),
                    log=log,
                    resources=kernel_resources(log, cubin),
                )
        except Exception:  # a damaged file makes zipfile raise errors of a dozen kinds
            return None

    def store(self, key: str, kernel: Kernel) -> None:
        """Write a kernel's file atomically: readers see all of it or nothing."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                NamedTemporaryFile(dir=path.parent, delete=False) as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            ):
                archive.writestr("digest", _digest(key, kernel.cubin))
                archive.writestr("kernel.cubin", kernel.cubin)
                archive.writestr("kernel.ptx", kernel.ptx)
                archive.writestr("ptxas.log", kernel.log)
            Path(file.name).replace(path)
        except OSError:
            return  # a cache that cannot be written costs time, not correctness

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keep other threads and processes from making the kernel of `key` at the same time.

        The operating system holds the lock, and releases it when its process ends. There is no lock
        in a folder that cannot be written: then each process makes the kernel.
        """
        path = self._path(key).with_name("lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):  # closing alone would leave it to children forked meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.zip"


def _digest(key: str, cubin: bytes) -> str:
    """Return the digest in a kernel's file that proves its key and that it is undamaged."""
    return hashlib.sha256(key.encode() + cubin).hexdigest()


# ------------------------------------------------------------------ compiler


class Compiler:
    """Compiles for `arch`, such as sm_90. Safe to use from several threads.

    For a virtual architecture, such as compute_90, nothing is assembled: its kernels are PTX alone.
    `line_info` adds the source line of each instruction to the PTX, for checks, never for timing.
    """

    def __init__(
        self, arch: str, cache: KernelCache | None = None, *, line_info: bool = False
    ) -> None:
        self.arch = arch
        self.line_info = line_info
        self.cache = cache or KernelCache()
        include = include_dir()
        self.options = (
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "--ptxas-options=-v",
            *(("--generate-line-info",) if line_info else ()),
            *(f"--include-path={folder}" for folder in _folders(include)),
        )

    def compile(self, source: str) -> Kernel:
        """Return the kernel of `source`, cached or compiled; raises CompileFailure with the log.

        If several processes need it at the same time, one compiles and the others wait for it.
        """
        key = self.key(source)
        kernel = self.cache.load(key)
        if kernel is not None:
            return kernel
        with self.cache.locked(key):
            return self.cache.load(key) or self._make(key, source)

    def _make(self, key: str, source: str) -> Kernel:
        """Compile and store a kernel; raises CompileFailure."""
        kernel = compile_source(source, self.options)
        self.cache.store(key, kernel)
        return kernel

    def key(self, source: str) -> str:
        """Return the cache's key of a source's kernel."""
        # Only options that decide the code: the path of the headers does not.
        options = tuple(option for option in self.options if "include-path" not in option)
        return self.cache.key(source, options, nvrtc_version())


# ------------------------------------------------------------------ edited sources


TEXT_LIMIT_S = 30.0
"""Seconds that NVRTC may take for a source that a person edited; emitted ones take 0.1 to 2 s."""

TEXT_LIMIT_BYTES = 8 * 2**30
"""Memory that NVRTC may take for such a source."""


def compile_in_time(compiler: Compiler, source: str, limit_s: float = TEXT_LIMIT_S) -> Kernel:
    """Compile a source that may keep NVRTC busy for ever, within a limit; raises CompileFailure.

    NVRTC cannot be stopped, so a separate process compiles the source first, and stores the kernel
    in the cache.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-m", __name__, compiler.arch, "lines" if compiler.line_info else ""],
            input=source.encode(),
            timeout=limit_s,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileFailure(f"error: NVRTC was not done with it after {limit_s:g} s") from None
    if tried.returncode:
        gib = TEXT_LIMIT_BYTES // 2**30
        raise CompileFailure(f"error: NVRTC ended before it was done with it, within {gib} GiB")
    return compiler.compile(source)


def _compile_once(arch: str, lines: str) -> None:
    """Compile the source on standard input into the cache: the work of that process."""
    resource.setrlimit(resource.RLIMIT_AS, (TEXT_LIMIT_BYTES, TEXT_LIMIT_BYTES))
    with suppress(CompileFailure):  # the caller compiles it again, and raises it
        Compiler(arch, line_info=bool(lines)).compile(sys.stdin.buffer.read().decode())


# ------------------------------------------------------------------ pool


class Mean:
    """The mean duration of a repeated action; threads may share it."""

    def __init__(self) -> None:
        self.count = 0
        self._total_s = 0.0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """The mean so far; 0 before the first."""
        return self._total_s / max(1, self.count)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the duration of the `with` block."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.add(time.monotonic() - begin)

    def add(self, seconds: float) -> None:
        """Count what took so long."""
        with self._lock:
            self.count += 1
            self._total_s += seconds


Made = TypeVar("Made")


class CompilePool:
    """Threads that compile, or wait for processes that do.

    NVRTC releases the interpreter's lock: on 2 cores, two threads are 1.9 times as fast as one. It
    has a lock of its own, so that on 16 cores sixteen are five times as fast
    (`evaluate.compile_processes`).
    """

    def __init__(self, compiler: Compiler, threads: int | None = None) -> None:
        self.compiler = compiler
        self.threads = threads or usable_cores()
        self.spent = Mean()
        """Time for one kernel, those found in the cache included."""
        self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="nvrtc")

    def submit(self, source: str) -> Future[Kernel]:
        """Start to compile; the future holds the kernel or raises CompileFailure."""
        return self.submit_then(source, lambda kernel: kernel)

    def submit_then(self, source: str, then: Callable[[Kernel], Made]) -> Future[Made]:
        """Start to compile, and to call `then` with the kernel in the same thread."""
        return self._executor.submit(self._compile, source, then)

    def leave(self) -> None:
        """Cancel all compilations that have not begun, and do not wait for those that have."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _compile(self, source: str, then: Callable[[Kernel], Made]) -> Made:
        with self.spent.measured():
            return then(self.compiler.compile(source))

    def __enter__(self) -> "CompilePool":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


if __name__ == "__main__":
    _compile_once(*sys.argv[1:])
