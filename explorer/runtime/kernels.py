"""The kernel of a problem, ready to be loaded: chosen, compiled once, and then cached on disk."""

import hashlib
import importlib.metadata
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from explorer.codegen.variant import Launch, Variant
from explorer.compile.compiler import Compiler, KernelCache, cache_dir
from explorer.model.config import Config
from explorer.model.errors import ExplorerError
from explorer.model.gpu_spec import GpuSpec
from explorer.model.key_split import WORD_BYTES
from explorer.model.problem import MAX_COLS, Layout, Problem, power_of_two
from explorer.model.tuned_table import tables_of
from explorer.model.work_split import WorkSplit
from explorer.system.plain_data import read_fields
from explorer.system.user_files import open_regular, template_dir

log = logging.getLogger("explorer")

Tables = Sequence[Path] | None
"""Files of tuned tables that are asked first; None stands for the GPU's own."""


@dataclass(frozen=True, slots=True)
class ReadyKernel:
    """Machine code for one GPU, with its launches for one problem."""

    cubin: bytes
    launches: tuple[Launch, ...]
    scratch_bytes: int
    alignment: int
    """Alignment in bytes of the address of each array."""


LEAST_KEYS = 256
"""Fewest keys of a cache for which a kernel of its own is chosen."""


def problem_of_kernel(problem: Problem) -> Problem:
    """Return the problem whose kernel serves a problem: what a launch is told counts as usual.

    That is the scale, and of attention the order of the cache's axes and the number of its keys: a
    cache that grows by a key at a time has a new kernel where this exceeds a power of two.
    """
    if problem.scale is not None:
        problem = replace(problem, scale=1.0)
    if problem.attends:
        cols = min(power_of_two(max(problem.cols, LEAST_KEYS)), MAX_COLS)
        problem = replace(problem.resized(cols=cols), layout=Layout.HND)
    return problem


# ------------------------------------------------------------------ make


def make(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    splits: int | None = None,
    tables: Tables = None,
) -> ReadyKernel:
    """Return the kernel that is taken without a search, compiled unless on disk.

    `splits` is into how many parts attention divides its keys, None for as many as are chosen.
    Takes 0.1 to 2 s where it must be compiled. Raises ExplorerError where there is none, and
    CompileFailure.
    """
    from explorer.codegen.units import emit
    from explorer.compile.resources import exceeded_resource
    from explorer.evaluate.without_search import without_search

    asked = tables if splits is None else ()
    taken = without_search(problem, gpu, batch_invariant=batch_invariant, tables=asked)
    log.debug("%s on %s: %s", problem, gpu.name, taken.origin)
    config = taken.config if splits is None else in_parts(taken.config, splits, problem, gpu)
    variant = variant_on(gpu, problem, config)
    compiler = Compiler(gpu.arch)
    kernel = compiler.compile(variant.source)
    exceeded = exceeded_resource(kernel.resources, variant.launches, gpu)
    if exceeded:
        raise ExplorerError(f"the kernel of {problem} cannot be launched on {gpu.name}: {exceeded}")
    if taken.measured is not None:
        other = taken.measured.other_residency_here(gpu, emit(problem, config))
        if other:
            log.warning("%s: %s", problem, other)
    ready = ReadyKernel(
        kernel.cubin, variant.launches, variant.scratch_bytes, alignment(problem, config)
    )
    path = _path(problem, gpu, batch_invariant, splits, tables)
    _keep(path, compiler.key(variant.source), ready)
    return ready


def variant_on(gpu: GpuSpec, problem: Problem, config: Config) -> Variant:
    """Return a config's variant for calls on a GPU.

    The launch of a small problem begins before the previous one has ended, if the GPU and the
    config support it, and waits for it in the kernel. That saves 0.8 us of an H200's host per call,
    and for 65536 x 128 bf16 the GPU takes 10.1 us instead of 10.3. A problem that does not fit the
    L2 cache takes the GPU longer than the host, and there it may cost more than it gains, because
    loads must not be marked constant: 1 % at 8192 x 4097 bf16.
    """
    from explorer.codegen.units import emit
    from explorer.codegen.variant import can_overlap

    is_small = problem.bytes <= gpu.l2_bytes
    overlapped = is_small and gpu.overlaps_launches and can_overlap(config)
    return emit(problem, config, overlapped=overlapped)


MOST_CLUSTERED = 8
"""Most blocks of a cluster that every GPU with clusters has room for."""


def in_parts(config: Config, splits: int, problem: Problem, gpu: GpuSpec) -> Config:
    """Return a config of attention that divides the keys into so many parts.

    They meet in a cluster if it can have as many blocks, else by a second launch. Raises
    ExplorerError where rules exclude that.
    """
    from explorer.space import Space

    clustered = power_of_two(splits) == splits <= min(MOST_CLUSTERED, gpu.cluster_blocks)
    two = "two-overlapped" if gpu.overlaps_launches else "two"
    config = replace(
        config,
        splits=splits,
        part_keys=64,
        cluster=splits if clustered else 1,
        launches="one" if clustered else two,
    )
    broken = Space(problem, gpu).broken_rule(config)
    if broken is not None:
        raise ExplorerError(f"splits is {splits}; {problem} has no such kernel: {broken.sentence}")
    return config


def alignment(problem: Problem, config: Config) -> int:
    """Return the alignment in bytes that a config's kernel needs of each array."""
    if problem.attends:
        return WORD_BYTES
    split = WorkSplit(problem, config)
    if not split.only_whole_vectors:
        return 1
    return max(config.vector_bytes, split.output_word_bytes)


# ------------------------------------------------------------------ find
# A file for each problem names the compiled kernel and its launches, so that a process with that
# file needs neither templates nor compiler, which take 0.3 s to load.


_FORMAT = 3

_MAX_BYTES = 2**16
"""Largest file of launches that is read; it has some 500 bytes."""


def find(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    splits: int | None = None,
    tables: Tables = None,
) -> ReadyKernel | None:
    """Return the kernel that `make` stored on disk; None if it is missing or damaged."""
    try:
        path = _path(problem, gpu, batch_invariant, splits, tables)
        with open_regular(path, most_bytes=_MAX_BYTES) as file:
            digest, text = file.read().decode().split("\n")
        if digest != _digest(path, text):
            return None
        stored = read_fields(_KernelFile, json.loads(text), "a kernel")
        kernel = KernelCache().load(stored.kernel)
        if kernel is None or hashlib.sha256(kernel.cubin).hexdigest() != stored.cubin:
            return None
        return ReadyKernel(kernel.cubin, stored.launches, stored.scratch_bytes, stored.alignment)
    except Exception:  # any other file: the kernel is made anew
        return None


@dataclass(frozen=True, slots=True)
class _KernelFile:
    """The contents of a problem's file."""

    kernel: str
    """The key of the compiled kernel."""
    cubin: str
    """The digest of its machine code."""
    launches: tuple[Launch, ...]
    scratch_bytes: int
    alignment: int


def _digest(path: Path, text: str) -> str:
    """Return the digest in a file, which proves that it is whole and of its problem."""
    return hashlib.sha256(f"{path.stem}\n{text}".encode()).hexdigest()


def _keep(path: Path, key: str, ready: ReadyKernel) -> None:
    """Write the file of a problem atomically: readers see all of it or nothing."""
    cubin = hashlib.sha256(ready.cubin).hexdigest()
    stored = _KernelFile(key, cubin, ready.launches, ready.scratch_bytes, ready.alignment)
    text = json.dumps(asdict(stored))
    with suppress(OSError):  # a kernel that cannot be stored is made again
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(f"{_digest(path, text)}\n{text}")
        Path(file.name).replace(path)


def _path(
    problem: Problem, gpu: GpuSpec, batch_invariant: bool, splits: int | None, tables: Tables
) -> Path:
    unscaled = problem if problem.scale is None else replace(problem, scale=1.0)
    paths = () if batch_invariant else tables_of(gpu) if tables is None else tables
    stats = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in paths]
    key = [_FORMAT, _installed(), repr(unscaled), repr(gpu), batch_invariant, splits, stats]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    return cache_dir() / "problems" / digest[:2] / f"{digest}.json"


@cache
def _installed() -> str:
    """Return a digest of everything that decides a problem's kernel: this package and the compiler.

    It uses the sizes and times of files instead of their text, so that 60 files take 2 ms.
    """
    package = Path(__file__).resolve().parents[1]
    files = [*template_dir().rglob("*.j2"), *package.glob("*.py"), Path(__file__)]
    for folder in ("model", "system", "space", "choose", "codegen", "compile", "evaluate"):
        files += (package / folder).rglob("*.py")
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    return hashlib.sha256(repr((stats, _compiler())).encode()).hexdigest()


def _compiler() -> str:
    """Return NVRTC's version from its package's metadata, without loading it."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return os.environ.get("CUDA_PATH", "")
