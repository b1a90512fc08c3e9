"""What a program calls: `search`, `tune`, `emit`, `compare` and `verify`.

Each does what the command of its name does, prints nothing, and returns a dataclass. The command
line is a thin layer over this module. Sentences that it prints on stderr reach a program by the
callback `notice`, or with the result. Libraries are imported when a function needs them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from explorer.model.accuracy import Accuracy
from explorer.model.asked import (
    AskedProblem,
    ProblemKeywords,
    asked_of,
    needed,
    rows_notice,
    several_of,
    whole,
)
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput, NotFound, WrongKernel
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, is_known_gpu, known_gpu, known_gpu_for
from explorer.model.problem import Problem
from explorer.system.plain_data import shown
from explorer.system.user_files import (
    StrPath,
    check_writable,
    is_there,
    is_writable_folder,
    named_file,
)
from explorer.tuning.objective import Effort, Goal, Objectives
from explorer.tuning.results import Progress, SearchResult

if TYPE_CHECKING:
    from explorer.codegen import Launch, Variant
    from explorer.evaluate.emulation import Verdict
    from explorer.evaluate.program_under_test import ProgramUnderTest
    from explorer.evaluate.verify import FinalistCheck
    from explorer.export import Choice, Written
    from explorer.model.evaluator import Evaluator
    from explorer.model.outcome import Resources
    from explorer.model.peer import Entered, NotEntered, PeerBench
    from explorer.model.tuned_table import TunedProblem, TunedTable
    from explorer.tuning import Found
    from explorer.tuning.known_times import KnownTimes
    from explorer.tuning.peer_comparison import Ours, PeerRun
    from explorer.tuning.surrogate import SamplerOf
    from explorer.tuning.tune import TuneProgress, TuneRun

Notice = Callable[[str], None]
"""Told each sentence that the command line would print on stderr."""


# ------------------------------------------------------------------ arguments


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {shown(value)}; it must be text")
    return value


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not is_number or value <= 0:
        raise InvalidInput(f"{name} is {shown(value)}; it must be a number of seconds above 0")
    return float(value)


def _accuracy(level: str | None) -> Accuracy | None:
    return None if level is None else Accuracy.parse(_text("accuracy", level))


def _goal(objectives: str, accuracy: str | None) -> Goal:
    return Goal.of(Objectives.parse(_text("objectives", objectives)), _accuracy(accuracy))


def _gpu(name: str | None) -> str | None:
    return None if name is None else _text("gpu", name)


def _storage(storage: StrPath | None) -> str | None:
    if storage is None:
        return None
    return _text("storage", os.fspath(storage) if isinstance(storage, os.PathLike) else storage)


def _path(name: str, value: StrPath | None) -> Path | None:
    return None if value is None else named_file(name, value, "the path of a file")


def _check_called(**functions: object) -> None:
    """Raise InvalidInput for what is to be called, unless it is None or can be."""
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise InvalidInput(f"{name} is {shown(value)}; it must be a function, or None")


class _Heard:
    """Keeps the sentences that it is told, and hands them on.

    `others` are the further functions that a call was given, by the names of their parameters.
    Raises InvalidInput for what is neither a function nor None.
    """

    def __init__(self, notice: Notice | None, **others: object) -> None:
        _check_called(notice=notice, **others)
        self._notice = notice
        self.sentences: list[str] = []

    def __call__(self, sentence: str) -> None:
        self.sentences.append(sentence)
        if self._notice is not None:
            self._notice(sentence)


def why_no_gpu(device: str) -> str | None:
    """Why there is no GPU, where one was left to be found."""
    from explorer.devices.cuda import driver_problem

    return driver_problem() if device == "auto" else None


def assumes_gpu(name: str | None) -> bool:
    """Whether the limits are those of the default GPU, as none is named and none is here."""
    from explorer.devices.cuda import has_driver

    return name is None and not has_driver()


def gpu_limits(name: str | None) -> GpuSpec:
    """Those of the named GPU, else of the one that is here, else of the default one.

    Raises InvalidInput for a name that is not known.
    """
    if name is not None:
        return known_gpu(name)
    if assumes_gpu(name):
        return known_gpu(DEFAULT_GPU)
    from explorer.devices.cuda import CudaDevice

    with CudaDevice(0) as device:
        return device.gpu


def gpu_words(gpu: GpuSpec, named: str | None, *, with_arch: bool = False) -> str:
    """What to print of a GPU whose limits count, where nothing runs on it: `for NVIDIA H200`."""
    is_stand_in = assumes_gpu(named)
    facts = [gpu.arch] if with_arch else []
    facts += ["no GPU here; --gpu names another"] if is_stand_in else []
    told = f" ({'; '.join(facts)})" if facts else ""
    return f"{'on' if named is None and not is_stand_in else 'for'} {gpu.name}{told}"


# ------------------------------------------------------------------ search


def search(
    problem: Problem | AskedProblem | None = None,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    effort: str | None = None,
    device: str = "auto",
    storage: StrPath | None = None,
    seed: int = 0,
    timing: str = "cold",
    accuracy: str | None = None,
    objectives: str = "time",
    sampler: str | None = None,
    verify: bool = True,
    progress: Callable[[Progress], None] | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> SearchResult:
    """Find the fastest kernel of a problem, as `explorer search`; the same call again goes on.

    The problem is an `explorer.Problem`, or said by the keywords of the command line: `cols`,
    `rows`, `dtype`, `op` and so on (`ProblemKeywords`).

    Args:
        problem: What to compute, unless keywords say it.
        trials: Kernels to evaluate in this call.
        budget_s: Seconds for search and finals.
        effort: `quick`, `default` or `full`, in place of both: each is a number of kernels at
            most, and the search ends sooner once it gains nothing beyond noise. The numbers are
            those of `explorer.tuning.objective.Effort`, which `explorer search --help` prints.
        device: `auto`, `cuda:N`, or `recorded:NAME`. `auto` is the first GPU; where there is none,
            a recording of the problem is replayed, and the result says so.
        storage: An Optuna storage, a URL or a SQLite file; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        seed: Of the search.
        timing: `cold`: launches rotate over buffers of 4 x L2; `warm`: they stay on one.
        accuracy: `strict`, `default` or `fast`; None: default, and fast for time,error.
        objectives: `time`, or `time,error`: the finalists are then the Pareto front of both.
        sampler: `module:Class` of an Optuna sampler that proposes what comes after the first few
            kernels; None: our mixture of small changes, TPE and random draws.
        verify: Whether the finalists of a replay are checked on the emulator.
        progress: Called with a `Progress` after every trial.
        notice: Called with each sentence of the result's `notices`, at once.

    Returns:
        The study's name, the best's config and time, copy's time, the finalists and ties, and the
        environment. Times are microseconds a launch.

    Raises:
        InvalidInput: for a value that cannot be used, or a GPU that is not there.
        NotFound: where there is neither a GPU nor a recording, or no kernel could be used.
        WrongKernel: where a replayed finalist is wrong by the emulator.
        DeviceLost: where the GPU's process cannot be brought back.
        KeyboardInterrupt: by Ctrl-C, with all finished trials kept in the storage.
    """
    asked = needed(asked_of(search, problem, keywords))
    goal = _goal(objectives, accuracy)
    trials = None if trials is None else whole("trials", trials, 1)
    budget_s = None if budget_s is None else _seconds("budget_s", budget_s)
    level = _effort(effort, trials, budget_s)
    seed = whole("seed", seed, 0)
    heard = _Heard(notice, progress=progress)
    device = _text("device", device)
    result = _search_on(
        asked,
        device,
        timing,
        _storage(storage),
        goal,
        heard,
        trials=trials,
        budget_s=budget_s,
        effort=level,
        seed=seed,
        on_progress=progress,
        objectives=goal.objectives,
        sampler=_sampler(sampler),
    )
    check = _check_replayed(result, heard) if verify and result.replayed else None
    return replace(result, verification=check, notices=tuple(heard.sentences))


def _search_on(
    asked: AskedProblem,
    device: str,
    timing: str,
    storage: str | None,
    goal: Goal,
    heard: "_Heard",
    *,
    seed: int,
    **how: Any,
) -> SearchResult:
    """Search on a GPU or in a recording, and tell what a user should know of both.

    `how` is what `run_search` is given besides.
    """
    why, problem = why_no_gpu(device), asked.problem()

    @cache
    def opened() -> Any:
        from explorer.tuning import open_storage, run_search  # noqa: F401 (loads Optuna as well)

        return open_storage(storage)

    try:
        with _for_search(problem, device, timing, seed, goal, opened) as evaluator:
            from explorer.tuning import run_search

            kept = opened()  # what is wrong with it is said alone
            told = _replay_notices(evaluator, why)
            for sentence in (*told, *rows_notice(problem, asked.rows)):
                heard(sentence)
            result = run_search(evaluator, kept, seed=seed, **how)
    except ExplorerError as error:
        opened()  # what is wrong with the storage is said first
        if not (why and isinstance(error, NotFound)):
            raise
        raise NotFound(f"{why}, and {error}") from None
    for sentence in filter(None, (result.passed_over, result.superseded, result.changed)):
        heard(sentence)
    return result


@contextmanager
def _for_search(
    problem: Problem,
    device: str,
    timing: str,
    seed: int,
    goal: Goal,
    open_storage: Callable[[], object],
) -> "Iterator[Evaluator]":
    """Open what evaluates for a search.

    A GPU's process takes two seconds until it is ready. Meanwhile the kernels that the search tries
    first are compiled, and the storage is opened, for which Optuna is imported.
    """
    from explorer.evaluate.open_evaluator import open_evaluator

    def meanwhile(gpu: GpuSpec, *compiling: Any) -> None:
        from explorer.tuning.seeds import prepare  # templates too, which the GPU need not wait for

        prepare(problem, goal, seed, gpu, *compiling)
        open_storage()

    told = (problem, device, timing, seed, goal.accuracy)
    fastest = goal.objectives is Objectives.TIME  # a front has slower kernels, which are more exact
    with open_evaluator(*told, meanwhile=meanwhile, for_fastest=fastest) as evaluator:
        yield evaluator


def _effort(effort: str | None, trials: int | None, budget_s: float | None) -> Effort:
    """Raises InvalidInput for an unknown effort, and for one beside what it stands for."""
    if effort is None:
        return Effort.DEFAULT
    level = Effort.parse(_text("effort", effort))
    if trials is not None or budget_s is not None:
        raise InvalidInput(
            f"effort is {level}, and a number of trials or a budget is given: give one of the two"
        )
    return level


def _sampler(name: str | None) -> "SamplerOf | None":
    """Raises InvalidInput where there is no such sampler."""
    if name is None:
        return None
    from explorer.tuning.samplers import named_sampler  # it imports Optuna, which takes 0.5 s

    return named_sampler(_text("sampler", name))


def _replay_notices(evaluator: "Evaluator", why: str | None) -> list[str]:
    """Whose times a replay shows; nothing of a GPU."""
    from explorer.evaluate.replay import ReplayEvaluator
    from explorer.report.text import replay_notice

    if not isinstance(evaluator, ReplayEvaluator):
        return []
    return [replay_notice(evaluator.environment, why), *evaluator.notices]


def _check_replayed(result: SearchResult, notice: Notice) -> "FinalistCheck | None":
    """Emulate the best of a replay and those tied with it, or the front.

    None where there is no NVRTC, which is noticed. Raises WrongKernel.
    """
    from explorer.compile import nvrtc_version
    from explorer.evaluate.verify import check_finalists
    from explorer.tuning.finals import front_of

    try:
        nvrtc_version()
    except ExplorerError as error:
        notice(f"finalists are not verified: {error}")
        return None
    two = result.objectives is Objectives.TIME_ERROR
    front = [member.finalist for member in front_of(result.finals)] if two else []
    configs = [finalist.trial.config for finalist in front or result.finals.ties]
    environment = result.environment
    return check_finalists(
        result.problem,
        configs,
        environment.arch,
        accuracy=environment.accuracy,
    )


# ------------------------------------------------------------------ the variant that WHAT names


What = str | int | Config
"""`best`, a trial's number, `heuristic`, a preset's name, or a config, also as JSON."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant and where it runs."""

    variant: "Variant"
    arch: str
    """Of the GPU that it was measured on, or is to run on."""
    gpu: GpuSpec | None
    """That GPU's limits, where they are known."""


def _choice(what: What) -> "Choice":
    """Raises InvalidInput saying the forms that there are."""
    from explorer.export import parse_choice

    if isinstance(what, Config):
        what.check_known()
        return what
    if isinstance(what, int) and not isinstance(what, bool):
        what = str(what)
    if not isinstance(what, str):
        raise InvalidInput(
            f"what is {shown(what)}; it must be text such as 'heuristic', a trial's number or an "
            "explorer.Config"
        )
    return parse_choice(what)


def chosen_variant(
    what: What,
    asked: AskedProblem,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    notice: Notice,
    *,
    batch_invariant: bool = False,
) -> Chosen:
    """What WHAT names, with the GPU that it was measured on unless another one is named.

    The best and trials are of the study with that goal. Of the heuristic a `batch_invariant`
    config is the same for all numbers of rows. Raises InvalidInput for what is none of these or no
    legal config, NotFound for a trial that is not there.
    """
    from explorer.export import HEURISTIC, is_of_study

    choice = _choice(what)
    if batch_invariant and choice != HEURISTIC:
        raise InvalidInput(
            f"batch-invariant configs are the heuristic's alone; {what} is one config whatever the "
            "rows are: leave batch-invariant out"
        )
    if is_of_study(choice):
        return _of_study(choice, asked, gpu, storage, goal, notice)
    if goal.objectives is Objectives.TIME_ERROR:
        raise InvalidInput(
            f"objectives say in which study a trial is; {what} is none: leave objectives out"
        )
    return _of_config(choice, asked, gpu, goal, notice, batch_invariant=batch_invariant)


def two_variants(
    named: tuple[What, What],
    asked: AskedProblem,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    notice: Notice,
    *,
    batch_invariant: bool = False,
) -> tuple[Chosen, Chosen]:
    """What two WHATs name, of the same problem and for the same GPU. Raises as `chosen_variant`.

    Where one of them is of a study, its problem and its GPU are those of the other, too. A
    `batch_invariant` config is asked of the heuristic alone.
    """
    from explorer.export import HEURISTIC, is_of_study

    if batch_invariant and HEURISTIC not in named:
        raise InvalidInput(
            "batch-invariant configs are the heuristic's alone, and neither of the two is the "
            "heuristic: leave batch-invariant out"
        )
    found: dict[int, Chosen] = {}
    for place in sorted((0, 1), key=lambda place: not is_of_study(_choice(named[place]))):
        what = named[place]
        of_study = is_of_study(_choice(what))
        chosen = chosen_variant(
            what,
            asked,
            gpu,
            storage,
            goal if of_study else Goal(accuracy=goal.accuracy),
            notice,
            batch_invariant=batch_invariant and what == HEURISTIC,
        )
        found[place] = chosen
        asked = AskedProblem.of(chosen.variant.problem)
        gpu = gpu or (chosen.gpu.name if chosen.gpu else known_gpu_for(chosen.arch).name)
    return found[0], found[1]


def known_times_of(
    variants: "Sequence[Variant]", gpu: GpuSpec, storage: str | None, goal: Goal
) -> "KnownTimes | None":
    """What variants of one problem were measured to take on a GPU, by the source that knows most.

    Raises InvalidInput where the storage cannot be read.
    """
    from explorer.tuning import open_storage, searching
    from explorer.tuning.known_times import known_times

    asked = AskedProblem.of(variants[0].problem)
    try:
        opened = open_storage(storage, read_only=True, command=searching(asked, goal))
    except NotFound:  # nothing was searched yet
        opened = None
    return known_times(variants, gpu, opened, goal)


def _of_config(
    choice: "Choice",
    asked: AskedProblem,
    gpu: str | None,
    goal: Goal,
    notice: Notice,
    *,
    batch_invariant: bool,
) -> Chosen:
    """A config that is written out, a preset's, or the heuristic's."""
    from explorer.choose import config_for
    from explorer.codegen import emit
    from explorer.export import checked_config

    limits = gpu_limits(gpu)
    problem = asked.problem()
    if isinstance(choice, str | int):
        config = config_for(
            problem, limits, batch_invariant=batch_invariant, accuracy=goal.accuracy
        )
    elif isinstance(choice, Config):
        config = checked_config(choice, problem, limits)
    else:
        config = choice.config(problem, limits)
    variant = emit(problem, config)
    for sentence in rows_notice(problem, asked.rows):
        notice(sentence)
    return Chosen(variant, limits.arch, limits)


def _of_study(
    which: str | int,
    asked: AskedProblem,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    notice: Notice,
) -> Chosen:
    """The best trial of a study, or one by its number."""
    from explorer.export import age_of, checked_config, variant_of
    from explorer.tuning import load_trial, open_storage, searching

    try:
        opened = open_storage(storage, read_only=True, command=searching(asked, goal))
        study, trial = load_trial(opened, asked, which, goal)
    except NotFound as error:
        if which != "best" or asked.without_search in str(error):
            raise
        remedy = f"or take a kernel without a search: {asked.without_search}"
        raise NotFound(f"{error}; {remedy}") from None
    if study.passed_over:
        notice(study.passed_over)
    problem = study.summary.problem
    variant = variant_of(trial, problem, replayed=study.summary.replayed)
    age = age_of(variant, trial, study.environment)
    if age:
        notice(age)
    name = gpu or study.environment.gpu
    limits = known_gpu(name) if gpu or is_known_gpu(name) else None
    if limits is not None and limits.name != study.environment.gpu:  # else it was launched there
        checked_config(variant.config, problem, limits)
    arch = limits.arch if limits else study.environment.arch
    return Chosen(variant, arch, limits)


# ------------------------------------------------------------------ emit


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel's source, how it is launched, and what was found out about it."""

    variant: "Variant"
    arch: str
    """The architecture that it was compiled and verified for, such as sm_90."""
    gpu: GpuSpec | None
    """The limits that it keeps to, where they are known."""
    resources: "Resources | None"
    """Registers, shared memory and spills; None where there is no NVRTC."""
    verdict: "Verdict | None"
    """The emulator's; None where it was not asked, or there is no NVRTC."""
    path: Path | None = None
    """The file, where one was to be written."""
    written: "Written | None" = None
    """What became of the file."""
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
    def launches(self) -> "tuple[Launch, ...]":
        """In order: entry, grid, block, cluster, dynamic shared bytes, names of arguments."""
        return self.variant.launches

    @property
    def scratch_bytes(self) -> int:
        """Device memory that the launches share."""
        return self.variant.scratch_bytes


def emit(
    what: What,
    problem: Problem | AskedProblem | None = None,
    *,
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    storage: StrPath | None = None,
    batch_invariant: bool = False,
    overlapped: bool = False,
    main: bool = False,
    verify: bool = True,
    path: StrPath | None = None,
    force: bool = False,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> Emitted:
    """Emit a kernel, compile it and verify it on the emulator, as `explorer emit`; no GPU needed.

    Args:
        what: `best` or a trial's number, of a study of the problem; `heuristic`; a preset's name;
            or a config, an `explorer.Config` or its JSON.
        problem: What to compute, unless keywords say it (`ProblemKeywords`).
        gpu: The GPU whose limits count, as its driver calls it; None: the one that a trial was
            measured on, else the one here, else NVIDIA H200.
        accuracy: The largest error allowed, `strict`, `default` or `fast`; None: as usual.
        objectives: Of the study: `time`, or `time,error`.
        storage: The Optuna storage that has the study; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        batch_invariant: Of the heuristic: one config whatever the rows are.
        overlapped: Whether the launch begins before the one before it on its stream has ended, and
            waits for that in its code, which narrows the gap between small kernels. On sm_90 and
            later.
        main: Whether the source has a `main()`, which checks the kernel on an example and times it.
        verify: Whether the kernel is checked; a wrong one raises WrongKernel.
        path: A file to write; None: none is written.
        force: Replace a file that holds other code.
        notice: Called with each sentence of the result's `notices`, at once.

    Raises:
        InvalidInput: for a value that cannot be used, an illegal config, or a file that cannot be
            written or holds other code.
        NotFound: where there is no such study or trial.
        WrongKernel: where the kernel is wrong; its `verdict` has the findings. Nothing is written.
    """
    from explorer.export import overlapping, with_main, write_source

    _choice(what)
    asked = needed(asked_of(emit, problem, keywords))
    goal, file = _goal(objectives, accuracy), _path("path", path)
    heard = _Heard(notice)
    chosen = chosen_variant(
        what, asked, _gpu(gpu), _storage(storage), goal, heard, batch_invariant=batch_invariant
    )
    arch = chosen.arch
    variant = overlapping(chosen.variant, arch) if overlapped else chosen.variant
    variant = with_main(variant) if main else variant
    if file is not None:
        check_writable(file)
    resources = compiled(variant, arch, heard)
    unchecked = not verify or resources is None
    verdict = None if unchecked else verified(variant, arch, goal.accuracy, heard)
    written = None if file is None else write_source(variant, file, force=force)
    return Emitted(
        variant, arch, chosen.gpu, resources, verdict, file, written, tuple(heard.sentences)
    )


def compiled(variant: "Variant", arch: str, notice: Notice) -> "Resources | None":
    """What the kernel takes on `arch`; None where there is no NVRTC, which is noticed.

    Raises InvalidInput where the source does not compile.
    """
    from explorer.compile import nvrtc_version
    from explorer.export import compile_for
    from explorer.report.text import resources_line

    try:
        version = nvrtc_version()
    except ExplorerError as error:
        notice(f"not compiled as a check: {error}")
        return None
    resources = compile_for(arch, variant)
    for sentence in _cache_fault():
        notice(sentence)
    notice(f"compiles for {arch} with NVRTC {version}: {resources_line(resources)}")
    return resources


_told_of_cache: list[Path] = []
"""Folders that cannot be written, of which a sentence was said in this process."""


def _cache_fault() -> list[str]:
    """Say, once a process, that no kernel can be kept and each is compiled anew."""
    from explorer.compile import cache_dir

    folder = cache_dir()
    if folder in _told_of_cache or is_writable_folder(folder):
        return []
    _told_of_cache.append(folder)
    return [
        f"no kernel is kept, and each is compiled anew: {folder} cannot be written; set "
        "EXPLORER_CACHE_DIR"
    ]


def verified(variant: "Variant", arch: str, accuracy: Accuracy, notice: Notice) -> "Verdict":
    """Check a kernel on the emulator; raises WrongKernel, whose `verdict` has the findings."""
    from explorer.export import verify_variant
    from explorer.report.verification import emission_sentence

    verdict = verify_variant(variant, arch, accuracy)
    sentence = emission_sentence(verdict)
    if verdict.status == "wrong":
        wrong = WrongKernel(sentence)
        wrong.verdict = verdict
        raise wrong
    notice(sentence)
    return verdict


# ------------------------------------------------------------------ verify


@dataclass(frozen=True, slots=True)
class Checks:
    """Programs of one problem that are to be checked."""

    programs: "tuple[ProgramUnderTest, ...]"
    arch: str
    """The architecture that the emulator compiles them for."""
    rows: int | None = None
    """Rows that are executed; None for a few that show every case."""

    def verdicts(self, device: str, accuracy: Accuracy) -> "Iterator[Verdict]":
        """Each program's, in order, by `emulated`, `cuda:N` or `auto`. Raises InvalidInput."""
        from explorer.evaluate.verify import verify_on

        return verify_on(device, self.programs, self.arch, self.rows, accuracy)


SOURCE_SUFFIX = ".cu"
"""By which an emitted file is told from other things to verify."""


def verify(
    what: What | os.PathLike[str],
    problem: Problem | AskedProblem | None = None,
    *,
    device: str = "emulated",
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    batch_invariant: bool = False,
    storage: StrPath | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Verdict":
    """Check a kernel for races, accesses out of bounds and wrong numbers, as `explorer verify`.

    Args:
        what: As of `explorer.emit`, or the path of an emitted `FILE.cu`, which may be edited. Its
            text tells the problem: of the keywords `rows` and `cols` alone may stand beside it.
        problem: What to compute, unless keywords say it (`ProblemKeywords`). The keyword `rows`
            also says how many rows are executed; otherwise these are a few that show every case.
        device: `emulated`, `cuda:N`, or `auto`: cuda:0 if there is one.
        gpu: The GPU whose limits count; None: as of `explorer.emit`.
        accuracy: The largest error allowed, `strict`, `default` or `fast`; None: as usual.
        objectives: Of the study that has the trial: `time`, or `time,error`.
        batch_invariant: Of the heuristic: one config whatever the rows are.
        storage: The Optuna storage that has the study; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        notice: Called with each sentence that the command line prints on stderr.

    Returns:
        The verdict: `status` (verified, inaccurate, unverified or wrong), a `sentence`, the
        emulated `runs` and the `findings`. A wrong kernel is a result, and raises nothing.

    Raises:
        InvalidInput: for a value that cannot be used, a file that was not emitted, or no GPU.
        NotFound: where there is no such study or trial.
    """
    asked = asked_of(verify, problem, keywords)
    goal, gpu = _goal(objectives, accuracy), _gpu(gpu)
    heard = _Heard(notice)
    named = os.fspath(what) if isinstance(what, os.PathLike) else what
    if isinstance(named, str) and named.endswith(SOURCE_SUFFIX):
        checks = _of_file(named, gpu, problem, keywords)
    else:
        rows = asked.rows if asked and problem is None else None
        checks = named_checks(
            named,
            needed(asked),
            rows,
            gpu,
            _storage(storage),
            goal,
            heard,
            batch_invariant=batch_invariant,
        )
    (verdict,) = checks.verdicts(_text("device", device), goal.accuracy)
    return verdict


def _of_file(path: str, gpu: str | None, problem: object, keywords: ProblemKeywords) -> Checks:
    """An emitted file, whose text tells the problem. Raises InvalidInput."""
    said = [name for name, value in keywords.items() if value is not None]
    more = ["problem"] if problem is not None else [n for n in said if n not in ("rows", "cols")]
    if more:
        raise InvalidInput(
            f"{more[0]} says nothing of an emitted file, whose text tells what it computes; leave "
            "it out"
        )
    rows, cols = keywords.get("rows"), keywords.get("cols")
    for name, value in (("rows", rows), ("cols", cols)):
        if value is not None:
            whole(name, value, 1)
    return file_checks(path, cols, rows, gpu)


def file_checks(path: str, cols: int | None, rows: int | None, gpu: str | None) -> Checks:
    """An emitted file, at other columns where these are given. Raises InvalidInput."""
    from explorer.evaluate.program_under_test import read_emitted

    program = read_emitted(Path(path)).at_cols(cols)
    return Checks((program,), gpu_limits(gpu).arch, rows)


def named_checks(
    what: What,
    asked: AskedProblem,
    rows: int | None,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    notice: Notice,
    *,
    batch_invariant: bool = False,
) -> Checks:
    """What WHAT names. `rows` that are given are executed, of a study of usual rows.

    Raises as `chosen_variant`.
    """
    from explorer.evaluate.program_under_test import ProgramUnderTest
    from explorer.export import HEURISTIC, is_of_study

    choice = _choice(what)
    if rows is not None and is_of_study(choice):
        asked = asked.without_rows()
    chosen = chosen_variant(
        what, asked, gpu, storage, goal, notice, batch_invariant=batch_invariant
    )
    executed = None if choice == HEURISTIC else rows  # of it they choose the config
    return Checks((ProgramUnderTest.of(chosen.variant),), chosen.arch, executed)


def space_checks(
    asked: AskedProblem,
    rows: int | None,
    gpu: str | None,
    *,
    drawn: tuple[int, int] | None = None,
    strength: int = 1,
) -> Checks:
    """A covering array of the space of that strength, or `drawn` (number, seed) of its configs."""
    from explorer.evaluate.program_under_test import ProgramUnderTest
    from explorer.space import Space
    from explorer.space.space import covering_array, sampled

    limits = gpu_limits(gpu)
    problem = asked.problem()
    space = Space(problem, limits)
    configs = sampled(space, *drawn) if drawn else covering_array(space, strength)
    programs = (ProgramUnderTest.of_config(problem, config) for config in configs)
    return Checks(tuple(programs), limits.arch, rows)


# ------------------------------------------------------------------ compare


def compare(
    problems: "Problem | AskedProblem | Iterable[Problem] | None" = None,
    *,
    peers: Sequence[str] | None = None,
    peer_limit_s: float = 180.0,
    heuristic: bool = False,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str = "default",
    seed: int = 0,
    storage: StrPath | None = None,
    journal: StrPath | None = None,
    progress: "Callable[[PeerRun], None] | None" = None,
    on_progress: "Callable[[TuneProgress], None] | None" = None,
    on_peer: "Callable[[Entered | NotEntered], None] | None" = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "PeerRun":
    """Time our best beside copy and every installed peer on a GPU, as `explorer compare`.

    Args:
        problems: One or several, unless keywords say one (`ProblemKeywords`).
        peers: Their names, or module:attribute; None: all that are known.
        peer_limit_s: Seconds for a peer to compile, tune and verify.
        heuristic: Time the heuristic's kernel, not a search's best.
        device: `auto` or `cuda:N`.
        timing: `cold` or `warm`, as of `explorer.search`.
        accuracy: What our kernel and the peers must meet: `strict`, `default` or `fast`.
        seed: Of the inputs.
        storage: The Optuna storage with our searches; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        journal: A file to which each problem is appended once it is done. The same call takes from
            it what an earlier one that was cut off had measured; remove it to measure anew.
        progress: Called after every problem with the run so far, which Ctrl-C would lose.
        on_progress: Called with a `TuneProgress` before each problem, and after each peer.
        on_peer: Called with what became of each peer.
        notice: Called with each sentence that the command line prints on stderr.

    Returns:
        The comparisons, in order, and the problems of which nothing was compared, with the reason.
        Times are microseconds a launch, one a round.

    Raises:
        InvalidInput: where there is no GPU, and for a value that cannot be used.
        KeyboardInterrupt: by Ctrl-C.
    """
    wanted = several_of(compare, problems, keywords)
    limit_s = _seconds("peer_limit_s", peer_limit_s)
    seed = whole("seed", seed, 0)
    from explorer.evaluate.open_evaluator import open_peer_benches
    from explorer.peers import chosen_peers
    from explorer.peers.ahead import PeersAhead
    from explorer.tuning.comparison_run import Asked, Listeners, compare_all

    heard = _Heard(notice, progress=progress, on_progress=on_progress, on_peer=on_peer)
    kept = _path("journal", journal)
    chosen = chosen_peers(_names("peers", peers or ()))
    level = Accuracy.parse(_text("accuracy", accuracy))
    stored = _storage(storage)
    asked = Asked(tuple(chosen), heuristic, timing, level, seed)
    told = Listeners(heard, on_peer, progress or (lambda _: None), on_progress)
    opened = open_peer_benches(_text("device", device), timing, seed, level)
    with opened as benches, PeersAhead(benches.gpu) as ahead:
        return compare_all(
            benches,
            wanted,
            asked,
            partial(_ours, storage=stored, notice=heard, heuristic=heuristic),
            journal=kept,
            ahead=ahead,
            limit_s=limit_s,
            tell=told,
        )


def _names(what: str, names: Any) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"{what} is {shown(names)}; it must be a list of names")
    return [_text(f"one of {what}", name) for name in names]


def _ours(bench: "PeerBench", storage: str | None, notice: Notice, *, heuristic: bool) -> "Ours":
    """The stored search's best; where there is none, or it is not wanted, the heuristic's."""
    from explorer.tuning.peer_comparison import Ours, unsearched

    found = None if heuristic else _searched(bench, storage, notice)
    return Ours(found.config, found.origin) if found else unsearched(bench)


def _searched(bench: "PeerBench", storage: str | None, notice: Notice) -> "Found | None":
    """The best of this problem's study, if there is a storage that has it."""
    try:
        from explorer.tuning import open_storage, stored_best
    except ImportError as error:
        notice(f"studies are not looked at: {error}")
        return None
    try:
        return stored_best(bench, open_storage(storage, read_only=True))
    except NotFound:
        return None


# ------------------------------------------------------------------ tune


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` came to, and where its table is."""

    run: "TuneRun"
    path: Path
    notices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a line for a notebook, without the times."""
        from explorer.report.text import counted

        table, untuned = self.run.table, len(self.run.untuned)
        left = f", {untuned} not tuned" if untuned else ""
        problems = counted(len(table.problems), "problem")
        return f"Tuned({problems} on {table.gpu.name}{left}, {self.path})"


def tune(
    problems: Iterable[Problem | AskedProblem],
    *,
    effort: str = "default",
    torch: bool = True,
    missing: bool = False,
    output: StrPath | None = None,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str | None = None,
    seed: int = 0,
    progress: Callable[["TuneProgress"], None] | None = None,
    notice: Notice | None = None,
) -> Tuned:
    """Find the best kernel of each problem and keep them as a table, as `explorer tune`.

    All problems share a list of candidates, and each is timed on each of them. What is finished is
    kept at once beside the table, in a file that ends in .partial.jsonl, so that the same call goes
    on after an interruption. That file goes once all problems are tuned.

    Args:
        problems: What to tune.
        effort: `quick`, `default` or `full`: how often the best few are varied.
        torch: Whether torch's own function is timed beside the best, where torch is installed.
        missing: Leave out the problems that the table has already, where they were measured by this
            version and in the way that is asked for.
        output: The table's file, which is added to; None: tuned/<gpu>.json
            in studies/ or in the user's data folder.
        device: `auto`, the first GPU, or `cuda:N`.
        timing: `cold`: launches rotate over buffers of 4 x L2; `warm`: they stay on one.
        accuracy: `strict`, `default` or `fast`; None: default.
        seed: Of the inputs, and of the order in which finalists are timed.
        progress: Called with a `TuneProgress` before each problem.
        notice: Called with each sentence of the result's `notices`, at once.

    Returns:
        The table of these problems, those of which nothing was measured with the reason, and the
        path of the file. Times are microseconds a launch.

    Raises:
        InvalidInput: where there is no GPU, for a value that cannot be used, and for a file that is
            no table or of another GPU.
        KeyboardInterrupt: by Ctrl-C, with all finished problems kept.
    """
    wanted = several_of(tune, problems, {})
    level, file = Effort.parse(_text("effort", effort)), _path("output", output)
    asked = Accuracy.parse(_text("accuracy", accuracy)) if accuracy else Accuracy.DEFAULT
    from explorer.evaluate.open_evaluator import open_peer_benches
    from explorer.model.tuned_table import write_table
    from explorer.peers import known_peers
    from explorer.tuning.tune import tune as tune_all

    heard = _Heard(notice, progress=progress)
    with open_peer_benches(
        _text("device", device),
        timing,
        whole("seed", seed, 0),
        asked,
        wanted="tuning",
        instead="without one, explorer search replays a recording",
    ) as benches:
        path, kept = _table_so_far(file, benches.gpu)
        journal = path.with_suffix(".partial.jsonl")
        resumes = partial(_is_as_asked, timing=timing, accuracy=asked, effort=level)
        try:
            run = tune_all(
                benches,
                wanted,
                journal,
                effort=level,
                torch=known_peers()["torch"] if torch else None,
                resumes=resumes,
                known=kept.problems if missing else (),
                tell=progress,
            )
        except KeyboardInterrupt:
            write_table(_with_journal(kept, journal, resumes), path)
            raise
    _say_of(run, heard)
    if run.table.problems:
        write_table(kept.with_(run.table.problems), path)
    if not run.untuned:
        journal.unlink(missing_ok=True)
    return Tuned(run, path, tuple(heard.sentences))


def _with_journal(
    kept: "TunedTable", journal: Path, resumes: Callable[["TunedProblem"], bool]
) -> "TunedTable":
    """Return a table with what a run has finished since."""
    from explorer.model.tuned_table import read_journal

    return kept.with_(filter(resumes, read_journal(journal, kept.gpu)))


def _say_of(run: "TuneRun", heard: Notice) -> None:
    """Say what was not tuned, and what was while the GPU was throttled."""
    for left_out in run.untuned:
        heard(f"not tuned: {left_out.problem}: {left_out.reason}")
    for one in run.table.problems:
        if one.environment.throttle_reasons:
            heard(f"throttled: {one.problem}: {one.environment.throttle_reasons}")


def _is_as_asked(one: "TunedProblem", *, timing: str, accuracy: Accuracy, effort: Effort) -> bool:
    """Whether a problem that an earlier run tuned is what this run would come to."""
    from explorer.evaluate.space_version import is_of_today

    made = one.environment
    as_asked = (made.timing, made.accuracy, one.effort) == (timing, accuracy, effort)
    return is_of_today(made, one.problem) and as_asked


def _table_so_far(output: Path | None, gpu: "GpuSpec") -> "tuple[Path, TunedTable]":
    """Return the path of the table that is added to, and the table, perhaps empty.

    Raises InvalidInput for a path that cannot be written and for a table of another GPU.
    """
    from explorer.model.tuned_table import TunedTable, read_table, table_path

    path = table_path(gpu) if output is None else output
    check_writable(path)
    if not is_there(path):
        return path, TunedTable(gpu, ())
    table = read_table(path)
    if table.gpu != gpu:
        raise InvalidInput(
            f"{path} is of another GPU, {table.gpu.name}, and this one is {gpu.name}; "
            "name another file"
        )
    return path, table
