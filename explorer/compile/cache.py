"""Compiled kernels on disk, one file a digest of (source, options, NVRTC version)."""

import hashlib
import json
import os
import zipfile
from pathlib import Path
from tempfile import NamedTemporaryFile

from explorer.compile.kernel import Kernel
from explorer.compile.resources import kernel_resources
from explorer.user_files import open_regular

_FORMAT = 1

_MAX_FILE_BYTES = 64 * 2**20
"""Largest file of a kernel that is read. The largest kernel takes 0.1 MB."""


def cache_dir() -> Path:
    """`$EXPLORER_CACHE_DIR`, else softmax-explorer in the user's cache folder (XDG)."""
    named = os.environ.get("EXPLORER_CACHE_DIR")
    if named:
        return Path(named)
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(named or Path.home() / ".cache") / "softmax-explorer"
    except RuntimeError:  # a user without a home: nothing can be written below this
        return Path(os.devnull) / "softmax-explorer"


class KernelCache:
    """A folder of kernels. A folder that cannot be written, or a damaged file, is no error."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_dir() / "kernels"

    def key(self, source: str, options: tuple[str, ...], version: str) -> str:
        """The digest under which a kernel is kept."""
        text = json.dumps([_FORMAT, source, options, version])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def load(self, key: str) -> Kernel | None:
        """The kernel kept under `key`, or None."""
        try:
            with (
                open_regular(self._path(key), most_bytes=_MAX_FILE_BYTES) as file,
                zipfile.ZipFile(file) as archive,
            ):
                cubin = archive.read("kernel.cubin")
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
        """Keep a kernel; readers see it whole or not at all."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                NamedTemporaryFile(dir=path.parent, delete=False) as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            ):
                archive.writestr("kernel.cubin", kernel.cubin)
                archive.writestr("kernel.ptx", kernel.ptx)
                archive.writestr("ptxas.log", kernel.log)
            Path(file.name).replace(path)
        except OSError:
            return  # a cache that cannot be kept costs time, not correctness

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.zip"
