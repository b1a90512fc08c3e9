"""An emitted kernel: compiled and verified as a check, and written to a file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from explorer.codegen.variant import Launch, Variant
from explorer.compile.compiler import CompileFailure, Compiler, cache_dir, nvrtc_version
from explorer.compile.resources import resources_on
from explorer.devices.device import Setting
from explorer.devices.names import EMULATED, open_device
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status, Verdict
from explorer.export.choice import Chosen, Scope, What, chosen_variant, overlapping, with_main
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput, WrongKernel
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.model.query import command
from explorer.ptx_emulator import Kind
from explorer.system.user_files import (
    GENERATED,
    check_writable,
    is_writable_folder,
    read_text,
    write_file,
)

Notice = Callable[[str], None]

# ------------------------------------------------------------------ destination


FOLDER = Path(GENERATED)
"""Emitted kernels' folder, in the current directory."""

DIGEST_DIGITS = 12


_OR_FORCE = "name another file, or replace it with --force (in a program, force=True)"


class Written(StrEnum):
    """What became of the file."""

    NEW = "written"
    SAME = "already there, unchanged"
    REPLACED = "written over"


def default_path(variant: Variant) -> Path:
    """Return `generated/softmax_f32_4096_<digest>.cu`: equal names hold equal code."""
    problem = variant.problem
    stem = f"{problem.op}_{problem.dtype}_{problem.cols}_{variant.digest[:DIGEST_DIGITS]}"
    return FOLDER / f"{stem}.cu"


def write_source(variant: Variant, path: Path, *, force: bool = False) -> Written:
    """Write the variant's source. A file with other code is replaced by `force` alone.

    The header comment does not count, which names one of the configs that emit the same code, nor
    does a `main()` that was emitted.
    Raises InvalidInput where the file holds other code, or cannot be written.
    """
    check_writable(path)
    present = _present(path)
    if present == variant.source:
        return Written.SAME
    same = {_below_header(with_main(variant, main).source) for main in (False, True)}
    if present is not None and _below_header(present) not in same and not force:
        raise InvalidInput(f"{path} exists and holds other code; nothing was written: {_OR_FORCE}")
    write_file(path, variant.source)
    return Written.NEW if present is None else Written.REPLACED


def write_beside(path: Path, text: str, *, force: bool = False) -> Written:
    """Write a file that goes with the source; another one of its name is replaced by `force` alone.

    Raises InvalidInput where the file holds other text, or cannot be written.
    """
    check_beside(path, text, force=force)
    present = _present(path)
    if present == text:
        return Written.SAME
    write_file(path, text)
    return Written.NEW if present is None else Written.REPLACED


def check_beside(path: Path, text: str, *, force: bool = False) -> None:
    """See that `write_beside` will write, before the source is written; raises InvalidInput."""
    check_writable(path)
    if _present(path) not in (None, text) and not force:
        raise InvalidInput(
            f"{path} exists and holds another text; nothing was written: {_OR_FORCE}"
        )


def _present(path: Path) -> str | None:
    """Return what a file holds, empty for what is no source; None where there is no file."""
    if not path.exists():
        return None
    try:
        return read_text(path)
    except InvalidInput:  # it can be written, so it is a file, but with what is no source
        return ""


def _below_header(source: str) -> str:
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "".join(lines[start:])


# ------------------------------------------------------------------ checked


STEP_LIMIT = 500_000
"""Instructions of one batch of blocks: some five seconds."""


def checked(
    chosen: Chosen,
    variant: Variant,
    accuracy: Accuracy,
    notice: Notice,
    *,
    verify: bool = True,
    file: Path | None = None,
) -> tuple[Resources | None, Verdict | None]:
    """Compile the variant for the GPU that was chosen, and `verify` it on the emulator.

    `file` is where its source goes, which a notice names.
    Return what ptxas allots to it, and the verdict; both are None without NVRTC, which is noticed,
    as is another residency than the kernel was measured with.
    Raises InvalidInput where the source does not compile, and WrongKernel, whose `verdict` has the
    findings.
    """
    try:
        version = nvrtc_version()
    except ExplorerError as error:
        notice(f"not compiled as a check: {error}")
        return None, None
    arch, gpu = chosen.arch, chosen.gpu
    resources = compile_for(arch, gpu, variant)
    for sentence in _cache_fault():
        notice(sentence)
    is_unstated = resources.is_stated(variant.config) is False
    unstated = ", which launch bounds do not state" if is_unstated else ""
    notice(f"compiles for {arch} with NVRTC {version}: {resources}{unstated}")
    if chosen.measured is not None and gpu is not None:
        other = chosen.measured.other_residency_here(gpu, chosen.variant)
        if other:
            notice(other)
    return resources, _verified(variant, arch, accuracy, notice, file) if verify else None


def compile_for(arch: str, gpu: GpuSpec | None, variant: Variant) -> Resources:
    """Return what ptxas allots to the variant on `arch`, and its residency on a GPU if it is known.

    Raises InvalidInput where the source does not compile, ExplorerError where NVRTC is missing.
    """
    try:
        compiled = Compiler(arch).compile(variant.source)
    except CompileFailure as failure:
        raise InvalidInput(
            f"the config's kernel does not compile for {arch}: {failure}; choose another config"
        ) from None
    return resources_on(gpu, variant.launches, compiled.resources)


_told_of_cache: list[Path] = []
"""Folders that cannot be written, of which a sentence was said in this process."""


def _cache_fault() -> list[str]:
    """Say, once a process, that no kernel can be kept and each is compiled anew."""
    folder = cache_dir()
    if folder in _told_of_cache or is_writable_folder(folder):
        return []
    _told_of_cache.append(folder)
    return [
        f"no kernel is kept, and each is compiled anew: {folder} cannot be written; set "
        "EXPLORER_CACHE_DIR"
    ]


def _verified(
    variant: Variant, arch: str, accuracy: Accuracy, notice: Notice, file: Path | None
) -> Verdict:
    """Return what the emulator says of a variant; a very slow one is left unverified."""
    emulator = open_device(EMULATED, arch, step_limit=STEP_LIMIT)
    emulator.open(Setting(variant.problem, accuracy=accuracy))
    verdict = emulator.verify(ProgramUnderTest.of(variant))
    if verdict.status is Status.WRONG:
        wrong = WrongKernel(
            f"nothing was written, the kernel is wrong: {verdict.sentence}; choose another config, "
            "or write it all the same with --no-verify (in a program, verify=False)"
        )
        wrong.verdict = verdict
        raise wrong
    is_right = verdict.status is Status.VERIFIED
    gave_up = any(finding.kind is Kind.LIMIT for finding in verdict.findings)
    again = command("verify", str(file or "FILE.cu"))
    more = f"; {again} executes more steps of what is written" if gave_up else ""
    notice(
        f"{'verified' if is_right else f'warning: {verdict.status}'} by {verdict.by}: "
        f"{verdict.sentence}{more}"
    )
    return verdict


# ------------------------------------------------------------------ the whole


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel's source, how it is launched, and what was found out about it."""

    variant: Variant
    arch: str
    """The architecture that it was compiled and verified for, such as sm_90."""
    gpu: GpuSpec | None
    """The limits that it keeps to, where they are known."""
    resources: Resources | None
    """Registers, shared memory, spills and residency; None where there is no NVRTC."""
    verdict: Verdict | None
    """The emulator's; None where it was not asked, or there is no NVRTC."""
    path: Path | None = None
    """The file, where one was to be written."""
    written: Written | None = None
    """What became of the file."""
    beside: tuple[Path, Written] | None = None
    """The program beside it, where one was to be written, and what became of that."""
    notices: tuple[str, ...] = ()
    """What the command line says of it on stderr."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the source."""
        checked = "not verified" if self.verdict is None else str(self.verdict.status)
        parts = [str(self.problem), checked, *([str(self.path)] if self.path is not None else [])]
        return f"Emitted({', '.join(parts)})"

    @property
    def problem(self) -> Problem:
        """What it computes."""
        return self.variant.problem

    @property
    def config(self) -> Config:
        """The point of the space that it is."""
        return self.variant.config

    @property
    def source(self) -> str:
        """CUDA C++, one file to include or, with `main=True`, to build and run by itself."""
        return self.variant.source

    @property
    def launches(self) -> tuple[Launch, ...]:
        """In order: entry, grid, block, cluster, dynamic shared bytes, names of arguments."""
        return self.variant.launches

    @property
    def scratch_bytes(self) -> int:
        """Device memory that the launches share."""
        return self.variant.scratch_bytes


def emitted(
    what: What,
    scope: Scope,
    *,
    overlapped: bool,
    main: bool,
    verify: bool,
    path: Callable[[Variant], Path | None],
    program: Callable[[Variant, Path], tuple[Path, str]] | None = None,
    force: bool,
) -> Emitted:
    """Choose a kernel, check it, and write it to `path` with a `program` beside it.

    Nothing is written where `path` gives None, nor before all is checked. Raises as
    `explorer.emit`.
    """
    chosen = chosen_variant(what, scope)
    variant, arch = chosen.variant, chosen.arch
    variant = overlapping(variant, arch) if overlapped else variant
    variant = with_main(variant) if main else variant
    file = path(variant)
    if file is not None:
        check_writable(file)
    beside = None if program is None or file is None else program(variant, file)
    if beside is not None:
        check_beside(*beside, force=force)
    settings = (chosen, variant, scope.goal.accuracy, scope.notice)
    resources, verdict = checked(*settings, verify=verify, file=file)
    made = Emitted(variant, arch, chosen.gpu, resources, verdict, file)
    if file is not None:
        made = replace(made, written=write_source(variant, file, force=force))
    if beside is not None:
        made = replace(made, beside=(beside[0], write_beside(*beside, force=force)))
    return made
