"""What compilers make of the same sources: NVRTC of the versions that are pinned here, and nvcc.

    python -m tests.compilers FOLDER

compiles the sources on standard input with the NVRTC of a folder, and prints their resources: one
process has one NVRTC. A version that is not installed is unpacked beside the environment.
"""

import ctypes
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

from explorer.compile.compiler import Compiler, compile_source, nvrtc_version
from explorer.compile.resources import kernel_resources
from explorer.model.outcome import Resources
from explorer.system.processes import usable_cores

ROOT = Path(__file__).resolve().parents[1]

PINNED = ("13.0.88", "13.5.37")
"""Releases of the wheel nvidia-cuda-nvrtc."""

LIBRARIES = ("libnvrtc-builtins.so.*", "libnvrtc.so.*")
"""Those of a release, in the order in which they are loaded."""


def by_nvrtc(release: str, kernels: list[tuple[str, str]]) -> list[Resources]:
    """Compile sources, each for its architecture, by a release of NVRTC.

    In one thread, since NVRTC 13.0 can lose what ptxas says of spills when several compile.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.compilers", nvrtc_folder(release)],
        input=json.dumps(kernels),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["nvrtc"] == release.rpartition(".")[0]
    return [Resources(**values) for values in answer["resources"]]


def nvrtc_folder(release: str) -> Path:
    """Return the folder with the libraries of a release of NVRTC, unpacked if nobody has yet."""
    installed = distribution("nvidia-cuda-nvrtc")
    if installed.version == release:
        return Path(installed.locate_file("nvidia/cu13/lib"))
    folder = Path(sys.prefix) / "compilers" / release
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as new:
            unpacked = _unpacked(f"nvidia-cuda-nvrtc=={release}", Path(new))
            with suppress(OSError):  # another process has made it meanwhile
                unpacked.rename(folder)
    return folder


def _unpacked(wanted: str, folder: Path) -> Path:
    """Download a wheel, and return a folder with its libraries; skips where pip cannot."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--retries=1", "-q", "-d", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        pytest.skip(f"pip cannot download {wanted}: {why}")
    (wheel,) = folder.glob("*.whl")
    libraries = folder / "lib"
    libraries.mkdir()
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if any(fnmatch(Path(name).name, pattern) for pattern in LIBRARIES):
                (libraries / Path(name).name).write_bytes(archive.read(name))
    return libraries


def by_nvcc(kernels: list[tuple[str, str]]) -> list[Resources]:
    """Compile sources, each for its architecture, by the nvcc on the PATH."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(usable_cores()) as threads:
        bases = [Path(folder) / str(number) for number in range(len(kernels))]
        return list(threads.map(_by_nvcc, bases, *zip(*kernels, strict=True)))


def _by_nvcc(base: Path, arch: str, source: str) -> Resources:
    written, cubin = base.with_suffix(".cu"), base.with_suffix(".cubin")
    written.write_text(source)
    command = [shutil.which("nvcc"), "-std=c++17", f"-arch={arch}", "-cubin", "-Xptxas=-v"]
    command += ["-o", str(cubin), str(written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return kernel_resources(done.stderr, cubin.read_bytes())


def _compile_in_this_process(folder: str) -> None:
    """Load NVRTC before anything else can load another, and compile what is on standard input."""
    for pattern in LIBRARIES:
        (library,) = Path(folder).glob(pattern)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    resources = [
        asdict(compile_source(source, Compiler(arch).options).resources)
        for arch, source in json.load(sys.stdin)
    ]
    print(json.dumps({"nvrtc": nvrtc_version(), "resources": resources}))


if __name__ == "__main__":
    _compile_in_this_process(sys.argv[1])
