"""What `explorer doctor` looks for on this machine, and how it says so."""

import os
import platform
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from explorer import __version__
from explorer.codegen.units import emit, template_digest
from explorer.codegen.variant import launches
from explorer.compile.compiler import cache_dir, include_dir, nvrtc_version
from explorer.compile.resources import resources_on
from explorer.devices.names import EMULATED, FIRST_GPU, gpu_limits, open_device, why_no_gpu
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.recording import RecordingFile, list_recordings, read_recording
from explorer.devices.verdict import Status
from explorer.evaluate.profile import MISSING, disassembler
from explorer.evaluate.residency import MeasuredWith
from explorer.evaluate.space_version import is_of_today
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import ExplorerError, NotFound
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedBest, best_in_table, problems_in_table, tables_of
from explorer.ops import Op
from explorer.report.studies import PROGRAM, dashboard_program
from explorer.report.table import Field, Kind, data_of, print_table, table_of
from explorer.report.text import counted
from explorer.system.user_files import STUDIES, is_writable_folder, studies_folder, template_dir
from explorer.tuning.storage import STORAGE_VARIABLE, default_storage, open_storage
from explorer.tuning.study_reader import survey

# ------------------------------------------------------------------ one thing


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked for."""

    name: str
    ok: bool
    detail: str
    needed_for: str
    required: bool = False
    """Whether the package itself cannot work without it, or as it is."""
    otherwise: str = "missing"
    """What it is where it is not ok, in a word."""


# ------------------------------------------------------------------ what is looked for


Answer = tuple[bool, str]
"""Whether a thing is there and works, and a sentence on it."""


def _answer(look: Callable[[], Answer]) -> Answer:
    """Return what a look finds, or the error in which it ends."""
    try:
        return look()
    except ExplorerError as error:
        return False, str(error)


def checks(storage: str | None = None) -> tuple[Check, ...]:
    """Return all of them, in the order in which the pipeline needs them."""
    return (
        Check("package", True, _package(), "everything", required=True),
        Check("templates", *_templates(), "emitting kernels", required=True),
        Check("nvrtc", *_answer(_nvrtc), "compiling kernels", required=True),
        Check("headers", *_headers(), "compiling kernels of f16 and bf16", required=True),
        Check("driver", *_driver(), "timing kernels; without it recordings are replayed"),
        Check("gpu", *_answer(_gpu), "timing kernels"),
        Check(
            "residency",
            *_answer(_residency),
            "the speed that tuned kernels were measured with",
            otherwise="differs",
        ),
        Check("emulator", *_answer(_emulator), "verifying and profiling kernels without a GPU"),
        Check("recordings", *_recordings(), "searching without a GPU"),
        _storage(storage),
        Check("cache", *_cache(), "compiling each kernel once only"),
        Check("dashboard", *_program(dashboard_program, PROGRAM), "explorer dashboard (an extra)"),
        Check(
            "ncu",
            *_program(lambda: shutil.which("ncu"), "ncu"),
            "Nsight Compute's figures in explorer profile",
        ),
        Check("nvdisasm", *_nvdisasm(), "SASS in explorer diff (an extra)"),
        Check("nvcc", *_program(lambda: shutil.which("nvcc"), "nvcc"), "building emitted files"),
    )


OF_CLUSTER = "measuring on the cluster"


def cluster_checks(at: str) -> tuple[Check, ...]:
    """Return one for each worker of a Dask scheduler. Raises InvalidInput where none answers."""
    from explorer.tuning.cluster import look_at

    return tuple(
        Check(f"worker {address}", not one.fault, one.words, OF_CLUSTER, otherwise="not used")
        for address, one in sorted(look_at(at).items())
    )


def _package() -> str:
    return f"softmax-explorer {__version__}, Python {platform.python_version()}"


def _templates() -> Answer:
    folder = template_dir()
    if not (folder / "program.cu.j2").is_file():
        return False, f"{folder} holds none: install the package again"
    return True, f"{folder} (digest {template_digest()})"


def _nvrtc() -> Answer:
    return True, f"version {nvrtc_version()}"


def _headers() -> Answer:
    folder = include_dir()
    missing = "cuda_fp16.h is not found: pip install nvidia-cuda-runtime"
    return (True, str(folder)) if folder else (False, missing)


def _driver() -> Answer:
    problem = why_no_gpu("auto")
    return (True, "libcuda answers") if problem is None else (False, problem)


def _gpu() -> Answer:
    if why_no_gpu("auto") is not None:
        return False, "none without a driver"
    with open_device(FIRST_GPU) as device:
        gpu = device.gpu
    return True, f"{gpu.name} ({gpu.arch}), {gpu.memory_bytes / 1e9:.0f} GB"


MOST_COMPILED = 12
"""Kernels of a table that are compiled: 2 s at most the first time; then they are in the cache."""


def _residency() -> Answer:
    """Compile some best kernels of a tuned table, and compare their residency with the measured."""
    gpu = gpu_limits(None)
    tables = tables_of(gpu)
    if not tables:
        gpu = known_gpu(DEFAULT_GPU)
        tables = tables_of(gpu)
    if not tables:
        return True, "nothing to compare: there is no tuned table"
    try:
        version = nvrtc_version()
    except ExplorerError as error:
        return True, f"nothing to compare: {error}"
    table, others = tables[0], {}  # the one that kernels are taken from
    sample = _sampled(table, gpu)
    for problem, best in sample:
        then = MeasuredWith(best.environment.nvrtc, best.registers)
        if other := then.other_residency_here(gpu, emit(problem, best.config)):
            others[problem] = other
    if not sample:
        return True, f"nothing to compare: tuned table {table.stem} is of another version"
    kept = f"{len(sample) - len(others)} of {counted(len(sample), 'kernel')}"
    told = f"with NVRTC {version}, {kept} of tuned table {table.stem} have the residency that they "
    if not others:
        return True, f"{told}were measured with"
    first, sentence = next(iter(others.items()))
    names = ", ".join(map(str, others))
    return False, f"{told}were measured with, but not {names}. Of {first}: {sentence}"


def _sampled(table: Path, gpu: GpuSpec) -> list[tuple[Problem, TunedBest]]:
    """Return the largest problems of each op and type whose best kernel rests on registers."""
    kinds: dict[tuple[Op, DType], list[tuple[Problem, TunedBest]]] = defaultdict(list)
    for problem in sorted(problems_in_table(table), key=lambda one: -one.bytes):
        kind = kinds[problem.op, problem.dtype]
        best = best_in_table(table, gpu, problem) if len(kind) < MOST_COMPILED else None
        if best is None or not best.registers or not is_of_today(best.environment, problem):
            continue
        taken = Resources(best.registers)  # what counts of shared memory is the launch's
        if resources_on(gpu, launches(problem, best.config), taken).rests_on_registers:
            kind.append((problem, best))
    in_turn = chain.from_iterable(zip_longest(*kinds.values()))
    return [one for one in in_turn if one is not None][:MOST_COMPILED]


def _emulator() -> Answer:
    """Run one small kernel, from its source to its verdict."""
    program = ProgramUnderTest.of_config(Problem(1, 64), Config(threads=32, threads_per_row=32))
    verdict = open_device(EMULATED, known_gpu(DEFAULT_GPU).arch).verify(program)
    verified = verdict.status is Status.VERIFIED
    return verified, "executes PTX in NumPy" if verified else verdict.sentence


def _recordings() -> Answer:
    files = list_recordings()
    damage = {file.name: damage for file in files if (damage := _damage(file))}
    if not files:
        return False, "none; record one on a GPU with explorer record"
    sound = [file.name for file in files if file.name not in damage]
    return not damage, "; ".join([", ".join(sound) or "none can be used", *damage.values()])


def _damage(file: RecordingFile) -> str:
    """Return what is wrong with a recording, read to its end: only its header may be left."""
    is_whole, what = _answer(lambda: (True, read_recording(file.path).name))
    return "" if is_whole else what


def _storage(url: str | None) -> Check:
    """Say which studies there are, and which option, variable or folder says where that is.

    One that is there and cannot be opened is required, since each command on studies ends there.
    """
    place, made_for = _place(url), "keeping studies; a search creates it"
    try:
        found = survey(open_storage(url, read_only=True))
    except NotFound as error:
        return Check("storage", False, f"{error}; looked for in {place}", made_for)
    except ExplorerError as error:
        said = f"{error}; looked for in {place}"
        return Check("storage", False, said, made_for, required=True, otherwise="broken")
    number = counted(len(found.summaries), "study", "studies")
    told = "; ".join([f"{number} in {place}", *found.faults])
    return Check("storage", not found.faults, told, made_for, otherwise="damaged")


def _place(url: str | None) -> str:
    """Say where the storage is; a URL may have a password, so it is not repeated."""
    if url is not None:
        return "what --storage names"
    if os.environ.get(STORAGE_VARIABLE):
        return f"what ${STORAGE_VARIABLE} names"
    here = studies_folder() == STUDIES
    why = "there is a folder studies here" if here else "there is no folder studies here"
    return f"{default_storage()} ({why}; ${STORAGE_VARIABLE} names another)"


def _cache() -> Answer:
    folder = cache_dir()
    if not is_writable_folder(folder):
        return False, f"{folder} cannot be written; set EXPLORER_CACHE_DIR"
    return True, str(folder)


def _nvdisasm() -> Answer:
    path = disassembler()
    return (True, path) if path else (False, MISSING)


def _program(find: Callable[[], str | None], name: str) -> Answer:
    path = find()
    return (True, str(Path(path))) if path else (False, f"{name} is not on PATH")


# ------------------------------------------------------------------ the report


CHECK: tuple[Field[Check], ...] = (
    Field("", lambda c: c, "", lambda c: _state(c), kind=Kind.WORD),
    Field("name", lambda c: c.name, "what", kind=Kind.WORD),
    Field("ok", lambda c: c.ok),
    Field("detail", lambda c: c.detail, "found", kind=Kind.PROSE),
    Field("needed_for", lambda c: c.needed_for, "needed for", kind=Kind.PROSE),
    Field("required", lambda c: c.required),
)
"""What is known of each check."""


def _state(check: Check) -> Text:
    style = "green" if check.ok else "red" if check.required else "yellow"
    return Text("ok" if check.ok else check.otherwise, style)


def print_machine(checks: Sequence[Check], console: Console) -> None:
    """Print a line a check, then whether all is there that the package itself needs."""
    print_table(table_of(CHECK, checks, keys=2), console)
    console.print()
    console.print(conclusion(checks))


def conclusion(checks: Sequence[Check]) -> str:
    """Say what follows from the checks."""
    if any(check.needed_for == OF_CLUSTER for check in checks):
        used = sum(check.ok for check in checks)
        return f"{used} of {counted(len(checks), 'worker')} can be used."
    faults = [f"{one.name} {one.otherwise}" for one in checks if one.required and not one.ok]
    if faults:
        return f"The package cannot work: {', '.join(faults)}."
    if not any(check.name == "gpu" and check.ok for check in checks):
        return (
            "Kernels can be emitted, compiled and verified here, not timed: search replays "
            "recordings."
        )
    return "Kernels can be emitted, compiled, verified and timed here."


def machine_data(checks: Sequence[Check]) -> dict[str, Any]:
    """Return `ok` (all that is required is there) and the checks."""
    return {
        "ok": all(check.ok for check in checks if check.required),
        "checks": [data_of(CHECK, check) for check in checks],
    }
