"""The file that a kernel is written to: which kernel, where to, and whether it is right."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TypeGuard

from explorer.codegen import Variant, can_overlap, emit
from explorer.compile import CompileFailure, Compiler
from explorer.evaluate.emulation import Emulator, Verdict
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.model.accuracy import Accuracy
from explorer.model.asked import command_of
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import GpuSpec, known_gpu_for
from explorer.model.outcome import Environment, Resources
from explorer.model.parameters import COHERENT_HINTS
from explorer.model.problem import Problem
from explorer.presets import PRESET_NAMES, Preset, find_preset
from explorer.space import Space, can_emit
from explorer.system.plain_data import nearest, shown
from explorer.system.user_files import check_writable, read_text, write_file
from explorer.tuning.results import TrialRecord

# ------------------------------------------------------------------ kernels of trials


def variant_of(trial: TrialRecord, problem: Problem, *, replayed: bool = False) -> Variant:
    """What the templates emit for a trial's config.

    Raises NotFound where they do so no longer, or where that is other code than the trial measured.
    A trial that was `replayed` from a recording was of other code from the start if the recording
    is older than the templates: what they emit now is returned, and `age_of` says so.
    """
    if not can_emit(problem, trial.config):
        raise NotFound(
            f"trial {trial.number} measured the config {trial.config.to_json(brief=True)}, which "
            "the installed space does not allow: run the search again"
        )
    variant = emit(problem, trial.config)
    if replayed or variant.digest == trial.outcome.digest:
        return variant
    raise NotFound(
        f"trial {trial.number} measured code {trial.outcome.digest}, but these templates emit "
        f"{variant.digest} for its config: run the search again, or emit the config as it is now: "
        f"{command_of('emit', trial.config.to_json(brief=True), problem)}"
    )


def with_main(variant: Variant, main: bool = True) -> Variant:
    """Return the same kernel in a file with a `main()` that checks and times it, or without."""
    overlapped = variant.launches[0].overlaps
    return emit(variant.problem, variant.config, overlapped=overlapped, main=main)


def overlapping(variant: Variant, arch: str) -> Variant:
    """Return the same kernel for a launch that begins before the one before it has ended.

    `emit` of `codegen` says what that is. Raises InvalidInput where the architecture, such as
    sm_80, or the config cannot have it.
    """
    if not known_gpu_for(arch).overlaps_launches:
        raise InvalidInput(
            f"launches overlap on sm_90 and later, and the kernel is for {arch}: leave overlapped "
            "out, or name a newer gpu"
        )
    config = variant.config
    if not can_overlap(config):
        raise InvalidInput(
            f"the kernel's config has launches {config.launches} and load_hint "
            f"{config.load_hint}, but only a kernel of one launch, whose loads have the hint "
            f"{' or '.join(COHERENT_HINTS)}, may begin before the launch before it has ended: "
            "leave overlapped out, or choose such a config"
        )
    return emit(variant.problem, variant.config, overlapped=True)


def age_of(variant: Variant, trial: TrialRecord, recorded: Environment) -> str:
    """Say that a replayed trial's time is of other code than `variant`; nothing where it is not."""
    if variant.digest == trial.outcome.digest:
        return ""
    return (
        f"the recording made on {recorded.gpu} on {recorded.date[:10]} is older than the "
        f"templates: the time of trial {trial.number} is of other code than they emit now for its "
        "config"
    )


# ------------------------------------------------------------------ which kernel
# `best`, a trial's number, `heuristic`, a preset, or a config as JSON.


BEST = "best"
HEURISTIC = "heuristic"

MOST_DIGITS = 15
"""Of a trial's number."""

Choice = str | int | Config | Preset
"""BEST or HEURISTIC, a trial's number, a config, or a published kernel."""


def is_of_study(choice: Choice) -> TypeGuard[str | int]:
    """Whether it is a trial of a study: its best, or one by its number."""
    return isinstance(choice, int) or choice == BEST


def parse_choice(text: str, *, or_file: bool = False) -> Choice:
    """Read WHAT of `explorer emit`; raises InvalidInput saying its forms.

    With `or_file` the sentence says that it may also be an emitted file.
    """
    stripped = text.strip()
    if stripped in (BEST, HEURISTIC):
        return stripped
    if stripped.isascii() and stripped.isdigit():
        if len(stripped) > MOST_DIGITS:
            raise InvalidInput(
                f"a trial's number has {MOST_DIGITS} digits at most, and {shown(stripped)} has "
                f"{len(stripped)}; explorer show lists the best trials"
            )
        return int(stripped)
    if stripped.startswith("{"):
        return Config.from_json(stripped)
    if stripped.endswith(".cu") or "/" in stripped:
        raise InvalidInput(
            f"{shown(text)} names a file; explorer verify and explorer time alone take files, "
            "those that explorer emit has written, whose names end in .cu"
        )
    try:
        return find_preset(stripped)
    except InvalidInput:
        near = nearest(stripped, [BEST, HEURISTIC, *PRESET_NAMES])
        raise InvalidInput(
            f"{shown(text)} is no kernel: give {_OR_FILE if or_file else _FORMS}"
            f"{near and '; '}{near}"
        ) from None


_FORMS = (
    "best, a trial's number such as 12, heuristic, a preset that explorer presets lists, or a "
    "config as JSON such as '{\"threads\":256}'"
)
_OR_FILE = (
    "best, a trial's number, heuristic, a preset, a config as JSON, or an emitted file whose name "
    "ends in .cu"
)


# ------------------------------------------------------------------ destination


FOLDER = Path("generated")
"""Emitted kernels' folder, in the current directory."""

DIGEST_DIGITS = 12


_OR_FORCE = "name another file, or replace it with --force (in a program, force=True)"


class Written(StrEnum):
    """What became of the file."""

    NEW = "written"
    SAME = "already there, unchanged"
    REPLACED = "written over"


def default_path(variant: Variant) -> Path:
    """`generated/softmax_f32_4096_<digest>.cu`: equal names hold equal code."""
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
    """What a file holds, as far as it may be a source: a larger one is other code; or None."""
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


# ------------------------------------------------------------------ compiled


def checked_config(config: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """The config itself; raises InvalidInput with the sentence of the rule that it breaks."""
    space = Space(problem, gpu)
    foreign = space.foreign_value(config)
    if foreign is not None:
        raise InvalidInput(f"config cannot be emitted: {foreign}")
    rule = space.broken_rule(config)
    if rule is not None:
        raise InvalidInput(
            f"config cannot be emitted for {problem} on {gpu.name}: {rule.reason(config)}"
        )
    return config


def compile_for(arch: str, variant: Variant) -> Resources:
    """What ptxas allots to the variant on `arch`, such as sm_90.

    Raises InvalidInput where the source does not compile, ExplorerError where NVRTC is missing.
    """
    compiler = Compiler(arch)
    try:
        resources = compiler.compile(variant.source).resources
    except CompileFailure as failure:
        raise InvalidInput(
            f"the config's kernel does not compile for {arch}: {failure}; choose another config"
        ) from None
    dynamic = max(launch.shared_bytes for launch in variant.launches)
    return replace(resources, dynamic_shared_bytes=dynamic)


# ------------------------------------------------------------------ verified


STEP_LIMIT = 500_000
"""Instructions of one batch of blocks: some five seconds."""


def verify_variant(variant: Variant, arch: str, accuracy: Accuracy = Accuracy.DEFAULT) -> Verdict:
    """What the emulator says of a variant; a very slow one is left unverified."""
    emulator = Emulator(arch, step_limit=STEP_LIMIT, accuracy=accuracy)
    return emulator.verify(ProgramUnderTest.of(variant))
