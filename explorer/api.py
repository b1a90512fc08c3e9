"""What a program calls: `search`, `tune`, `emit`, `compare`, `verify`, `time`, `show` and so on.

Each does what the command of its name does, prints nothing, and returns a dataclass. The commands
`report`, `space` and `presets` are `write_report`, `describe_space` and `find_presets`, since
folders of the package have their names. The command line is a thin layer over this module.
Sentences that it prints on stderr reach a program by the callback `notice`, or with the result.
Libraries are imported when a function needs them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache as remembered
from functools import partial
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.errors import ExplorerError, InvalidInput, NotFound, WrongKernel
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.model.query import (
    ProblemKeywords,
    ProblemQuery,
    needed,
    query_of,
    rows_notice,
    several_of,
    whole,
)
from explorer.ops import Op
from explorer.space import restriction
from explorer.system.plain_data import shown
from explorer.system.user_files import (
    StrPath,
    check_writable,
    cuda_file,
    is_there,
    named_file,
)
from explorer.tuning.objective import Effort, Goal, Objectives, Where, where_words
from explorer.tuning.results import Progress
from explorer.tuning.results import SearchResult as Searched

if TYPE_CHECKING:
    from explorer.compile.compiler import CacheFolder, CompilePool
    from explorer.devices.own_kernel import OwnLaunch
    from explorer.devices.verdict import Verdict as Checked
    from explorer.evaluate.verify import Checks, FinalistCheck
    from explorer.export.choice import Scope, What
    from explorer.export.emission import Emitted
    from explorer.model.evaluator import Evaluator
    from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
    from explorer.model.tuned_table import TunedProblem, TunedTable
    from explorer.report.diff import Difference
    from explorer.report.notebook import (
        Journey,
        Profile,
        SearchResult,
        StudyHistory,
        TimedFile,
        Tuned,
        Verdict,
    )
    from explorer.report.notebook import PeerRun as ComparedRun
    from explorer.report.records import Records
    from explorer.report.side_by_side import SideBySide
    from explorer.report.space import PresetLine, SpaceView
    from explorer.space.restriction import Conditions
    from explorer.tuning.contest import Entry
    from explorer.tuning.objective import Score
    from explorer.tuning.peer_comparison import PeerRun
    from explorer.tuning.results import StudySummary
    from explorer.tuning.runs import RunProgress
    from explorer.tuning.samplers import Sampler
    from explorer.tuning.surrogate import SamplerOf

    Own = OwnLaunch | Mapping[str, Any]
    """How a kernel of one's own is launched: its fields may stand in a dict."""
    OwnOfEach = Own | Sequence[Own]
    """The same for all of several files, or for each of them."""

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


def _goal(
    objectives: "str | Score | Objectives",
    accuracy: str | None,
    study: str | None = None,
    gpu: str | None = None,
) -> Goal:
    level = None if accuracy is None else Accuracy.parse(accuracy)
    named = None if study is None else _text("study", study)
    if isinstance(objectives, str):
        objectives = Objectives.parse(objectives)
    elif not isinstance(objectives, Objectives):
        objectives = Objectives.of(objectives)
    return Goal.of(objectives, level, named, _gpu(gpu))


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
    """Keeps the sentences that it gets, and hands them on.

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


# ------------------------------------------------------------------ search


def search(
    problem: Problem | ProblemQuery | None = None,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    effort: str | None = None,
    device: str = "auto",
    storage: StrPath | None = None,
    seed: int = 0,
    timing: str = "cold",
    accuracy: str | None = None,
    objectives: "str | Score | Objectives" = "time",
    sampler: "Sampler | None" = None,
    where: "Conditions" = None,
    verify: bool = True,
    gpus: str | int | None = None,
    cluster: Any = None,
    progress: Callable[[Progress], None] | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "SearchResult":
    """Find the fastest kernel of a problem, as `explorer search`; the same call again goes on.

    The problem is an `explorer.Problem`, or given by the keywords of the command line: `cols`,
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
        objectives: `time`; `time,error`, of which the finalists are the Pareto front; or a function
            of a module, or its name as `module:function`: it gets an `explorer.Measured` and
            returns the number to minimise, which must be above 0.
        sampler: An Optuna sampler that proposes what comes after the first few kernels: its class,
            as `module:Class` too, or an instance; None: our mixture of small changes, TPE and
            random draws.
        where: The values that are left of some parameters, as `{"cache": "shared"}` or as
            `"cache=shared,none"`, one or several. Such a search has a study of its own.
        verify: Whether the finalists of a replay are checked on the emulator.
        gpus: `all`, or how many GPUs of this machine are used at the same time; None: one. This
            needs `softmax-explorer[cluster]`.
        cluster: The address of a Dask scheduler whose workers are used, `tcp://HOST:8786`, its
            file, or a cluster or a client of Dask. `device` is what each worker opens, or a part
            of the GPUs' name.
        progress: Called with a `Progress` after every trial.
        notice: Called with each sentence of the result's `notices`, at once.

    Returns:
        The study's name, the best's config and time, the limit's time, the finalists and
        ties, the environment, and every trial (`attempts`, `records()`, `to_frame()`). Times are
        microseconds a launch.

    Raises:
        InvalidInput: for a value that cannot be used, or a GPU that is not there.
        NotFound: where there is neither a GPU nor a recording, or no kernel could be used.
        WrongKernel: where a replayed finalist is wrong by the emulator.
        DeviceLost: where the GPU's process cannot be brought back.
        KeyboardInterrupt: by Ctrl-C, with all finished trials kept in the storage.
    """
    query = needed(query_of(search, problem, keywords))
    fixed = restriction(where, query.problem())
    goal = _goal(Objectives.of(objectives), accuracy)
    trials = None if trials is None else whole("trials", trials, 1)
    budget_s = None if budget_s is None else _seconds("budget_s", budget_s)
    level = _effort(effort, trials, budget_s)
    seed = whole("seed", seed, 0)
    heard = _Heard(notice, progress=progress)
    device = _text("device", device)
    result = _search_on(
        query,
        device,
        timing,
        _storage(storage),
        goal,
        heard,
        spread=(gpus, _cluster(cluster)),
        where=fixed,
        trials=trials,
        budget_s=budget_s,
        effort=level,
        seed=seed,
        on_progress=progress,
        objectives=goal.objectives,
        sampler=_sampler(sampler),
    )
    check = _check_replayed(result, heard) if verify and result.replayed else None
    from explorer.report.notebook import SearchResult
    from explorer.report.records import as_kind

    more = {"verification": check, "notices": tuple(heard.sentences)}
    return as_kind(SearchResult, result, storage=_storage(storage), **more)


def _search_on(
    query: ProblemQuery,
    device: str,
    timing: str,
    storage: str | None,
    goal: Goal,
    heard: "_Heard",
    *,
    seed: int,
    where: Where,
    spread: tuple[str | int | None, str | None] = (None, None),
    **how: Any,
) -> "Searched":
    """Search on a GPU, on many, or in a recording, and tell what a user should know of them.

    `spread` is what is said of many GPUs, and `how` what `run_search` is given besides.
    """
    from explorer.devices.names import why_no_gpu

    is_spread, problem = spread != (None, None), query.problem()
    why = None if is_spread else why_no_gpu(device)

    @remembered
    def opened() -> Any:
        from explorer.tuning.search import run_search  # noqa: F401 (loads Optuna as well)
        from explorer.tuning.storage import open_storage

        return open_storage(storage)

    try:
        opening: Any
        if is_spread:
            from explorer.tuning.cluster_device import open_on_cluster

            fastest = goal.objectives == Objectives.TIME
            settings = (problem, device, timing, seed, goal.accuracy, *spread, heard)
            opening = open_on_cluster(*settings, for_fastest=fastest)
        else:
            opening = _for_search(problem, device, timing, seed, goal, where, opened)
        evaluator: Evaluator
        with opening as evaluator:
            from explorer.tuning.search import run_search

            kept = opened()  # what is wrong with it is reported alone
            notices = _replay_notices(evaluator, why)
            for sentence in (*notices, *rows_notice(problem, query.rows)):
                heard(sentence)
            result = run_search(evaluator, kept, seed=seed, where=where, **how)
    except ExplorerError as error:
        opened()  # what is wrong with the storage is reported first
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
    where: Where,
    open_storage: Callable[[], object],
) -> "Iterator[Evaluator]":
    """Open what evaluates for a search.

    A GPU's process takes two seconds until it is ready. Meanwhile the kernels that the search tries
    first are compiled, and the storage is opened, for which Optuna is imported.
    """
    from explorer.evaluate.open_evaluator import open_evaluator

    def meanwhile(gpu: GpuSpec, pool: "CompilePool") -> None:
        from explorer.tuning.seeds import compile_first  # the GPU need not wait for its imports

        compile_first(problem, goal, seed, gpu, where, pool)
        open_storage()

    settings = (problem, device, timing, seed, goal.accuracy)
    fastest = goal.objectives == Objectives.TIME  # a front has slower kernels, which are more exact
    with open_evaluator(*settings, meanwhile=meanwhile, for_fastest=fastest) as evaluator:
        yield evaluator


def _cluster(named: Any) -> str | None:
    """Return the address of a scheduler, or its file; of an object of Dask's what it tells.

    Raises InvalidInput for what is none.
    """
    if named is None or isinstance(named, str | os.PathLike):
        return None if named is None else os.fspath(named)
    own = getattr(named, "scheduler_address", None)
    address = own or getattr(getattr(named, "scheduler", None), "address", None)
    if not isinstance(address, str):
        raise InvalidInput(
            f"cluster is {shown(named)}; give a scheduler's address, such as 'tcp://HOST:8786', "
            "its file, or a cluster or a client of Dask"
        )
    return address


def _benches(
    settings: tuple[Any, ...],
    gpus: str | int | None,
    cluster: Any,
    notice: Notice,
    **without: Any,
) -> Any:
    """Open what measures a list of problems: device, timing, seed and accuracy are the settings."""
    if gpus is None and cluster is None:
        from explorer.evaluate.open_evaluator import open_peer_benches

        return open_peer_benches(*settings, **without)
    from explorer.tuning.cluster_device import open_cluster_benches

    return open_cluster_benches(*settings, gpus, _cluster(cluster), notice)


def _effort(effort: str | None, trials: int | None, budget_s: float | None) -> Effort:
    """Read an effort; raises InvalidInput for an unknown one, and beside what it stands for."""
    if effort is None:
        return Effort.DEFAULT
    level = Effort.parse(effort)
    if trials is not None or budget_s is not None:
        raise InvalidInput(
            f"effort is {level}, and a number of trials or a budget is given: give one of the two"
        )
    return level


def _sampler(wanted: "Sampler | None") -> "SamplerOf | None":
    """Return the sampler that is wanted; raises InvalidInput for what is none."""
    if wanted is None:
        return None
    from explorer.tuning.samplers import sampler_of  # it imports Optuna, which takes 0.5 s

    return sampler_of(wanted)


def _replay_notices(evaluator: "Evaluator", why: str | None) -> list[str]:
    """Whose times a replay shows; nothing of a GPU."""
    from explorer.report.text import replay_notice

    if evaluator.catalogue is None:
        return []
    return [replay_notice(evaluator.environment, why), *evaluator.notices]


def _check_replayed(result: "Searched", notice: Notice) -> "FinalistCheck | None":
    """Emulate the best of a replay and those tied with it, or the front.

    None where there is no NVRTC, which is noticed. Raises WrongKernel.
    """
    from explorer.compile.compiler import nvrtc_version
    from explorer.evaluate.verify import check_finalists
    from explorer.tuning.contest import front_of

    try:
        nvrtc_version()
    except ExplorerError as error:
        notice(f"finalists are not verified: {error}")
        return None
    two = result.objectives.is_front
    finalists = front_of(result.finals) if two else result.finals.ties
    configs = [finalist.config for finalist in finalists]
    environment = result.environment
    return check_finalists(
        result.problem,
        configs,
        environment.arch,
        accuracy=environment.accuracy,
    )


# ------------------------------------------------------------------ emit


def emit(
    what: "What",
    problem: Problem | ProblemQuery | None = None,
    *,
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    storage: StrPath | None = None,
    study: str | None = None,
    batch_invariant: bool = False,
    overlapped: bool = False,
    main: bool = False,
    verify: bool = True,
    output: StrPath | None = None,
    force: bool = False,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Emitted":
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
        study: The study's name, or a part of it that no other has; it says the problem, too.
        batch_invariant: Of the heuristic: one config whatever the rows are.
        overlapped: Whether the launch begins before the one before it on its stream has ended, and
            waits for that in its code, which narrows the gap between small kernels. On sm_90 and
            later.
        main: Whether the source has a `main()`, which checks the kernel on an example and times it.
        verify: Whether the kernel is checked; a wrong one raises WrongKernel.
        output: A file to write; None: none is written.
        force: Replace a file that holds other code.
        notice: Called with each sentence of the result's `notices`, at once.

    Raises:
        InvalidInput: for a value that cannot be used, an illegal config, or a file that cannot be
            written or holds other code.
        NotFound: where there is no such study or trial.
        WrongKernel: where the kernel is wrong; its `verdict` has the findings. Nothing is written.
    """
    from explorer.export.choice import parse_choice
    from explorer.export.emission import emitted

    parse_choice(what)
    query, file, heard = query_of(emit, problem, keywords), _path("output", output), _Heard(notice)
    scope = _scope(query, gpu, accuracy, objectives, batch_invariant, storage, study, heard)
    try:
        made = emitted(
            what,
            scope,
            overlapped=overlapped,
            main=main,
            verify=verify,
            path=lambda _: file,
            force=force,
        )
    except WrongKernel as wrong:
        wrong.verdict = _tabular(wrong.verdict)
        raise
    checked = None if made.verdict is None else _tabular(made.verdict)
    return replace(made, verdict=checked, notices=tuple(heard.sentences))


def _scope(
    query: ProblemQuery | None,
    gpu: str | None,
    accuracy: str | None,
    objectives: str,
    batch_invariant: bool,
    storage: StrPath | None,
    study: str | None,
    notice: Notice,
) -> "Scope":
    """Return what a kernel's name is read by. Raises InvalidInput."""
    from explorer.export.choice import Scope

    goal = _goal(objectives, accuracy, study)
    return Scope(query, _gpu(gpu), _storage(storage), goal, notice, batch_invariant)


# ------------------------------------------------------------------ verify


def verify(
    what: "What | os.PathLike[str]",
    problem: Problem | ProblemQuery | None = None,
    *,
    device: str = "emulated",
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    batch_invariant: bool = False,
    storage: StrPath | None = None,
    study: str | None = None,
    notice: Notice | None = None,
    seed: int | None = None,
    thorough: bool = False,
    own: "Own | None" = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Verdict":
    """Check a kernel for races, accesses out of bounds and wrong numbers, as `explorer verify`.

    Args:
        what: As of `explorer.emit`, or the path of a `FILE.cu`. The text of an emitted one, which
            may be edited, tells the problem: of the keywords `rows` and `cols` alone may stand
            beside it. Any other is a kernel of your own, `FILE.cu:KERNEL` if there are several.
        problem: What to compute, unless keywords say it (`ProblemKeywords`). The keyword `rows`
            also says how many rows are executed; otherwise these are a few that show every case.
        device: `emulated`, `cuda:N`, or `auto`: cuda:0 if there is one.
        gpu: The GPU whose limits count; None: as of `explorer.emit`.
        accuracy: The largest error allowed, `strict`, `default` or `fast`; None: as usual.
        objectives: Of the study that has the trial: `time`, or `time,error`.
        batch_invariant: Of the heuristic: one config whatever the rows are.
        storage: The Optuna storage that has the study; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        study: The study's name, or a part of it that no other has; it says the problem, too.
        notice: Called with each sentence that the command line prints on stderr.
        seed: Of what is drawn, inputs and sizes; None: a fresh one, `verdict.program.seed`.
        thorough: Whether all sizes and rows are tried of which a check draws some.
        own: How a kernel of your own is launched, where its file does not say it.

    Returns:
        The verdict: `status` (verified, inaccurate, unverified or wrong), a `sentence`, the
        emulated `runs` and the `findings`. A wrong kernel is a result, and raises nothing.
        `to_dict()` is what `--json` prints, `records()` and `to_frame()` have a row a run.

    Raises:
        InvalidInput: for a value that cannot be used, a file that cannot be read, or no GPU.
        NotFound: where there is no such study or trial.
    """
    from explorer.export.choice import named_checks

    query, heard = query_of(verify, problem, keywords), _Heard(notice)
    scope = _scope(query, gpu, accuracy, objectives, batch_invariant, storage, study, heard)
    named = os.fspath(what) if isinstance(what, os.PathLike) else what
    if isinstance(named, str) and cuda_file(named):
        checks = _of_file(named, scope.gpu, query, keywords, own)
    else:
        rows = query.rows if query and problem is None else None
        checks = named_checks(named, rows, scope)
    checks = checks.drawn_by(seed, thorough=thorough)
    (verdict,) = checks.verdicts(_text("device", device), scope.goal.accuracy)
    return _tabular(verdict)


def _tabular(verdict: "Checked") -> "Verdict":
    from explorer.report.notebook import Verdict
    from explorer.report.records import as_kind

    return as_kind(Verdict, verdict)


def _own(launch: "Own | None") -> "OwnLaunch":
    """Return how a kernel of one's own is launched. Raises InvalidInput for other values."""
    from explorer.devices.own_kernel import OwnLaunch

    if launch is None or isinstance(launch, OwnLaunch):
        return launch or OwnLaunch()
    try:
        return OwnLaunch(**launch)
    except TypeError:
        raise InvalidInput(
            f"own is {shown(launch)}; give explorer.OwnLaunch(args='input,output,rows,cols'), or a "
            "dict of its fields"
        ) from None


def _own_of_each(own: "OwnOfEach | None", files: int) -> "list[OwnLaunch]":
    """Return how the kernel of each of some files is launched. Raises InvalidInput."""
    each = own if isinstance(own, Sequence) else [own] * files
    if len(each) != files:
        raise InvalidInput(
            f"own has {len(each)} launches, and there are {files} files; give one for all, or one "
            "for each"
        )
    return [_own(launch) for launch in each]


def _own_peers(
    with_: StrPath | Sequence[StrPath],
    own: "OwnOfEach | None",
    problem: Problem,
) -> "tuple[PeerName, ...]":
    """Return the kernels of files as peers. Raises InvalidInput."""
    from explorer.devices.own_kernel import own_peer

    files = [with_] if isinstance(with_, str | os.PathLike) else with_
    if not files:
        for launch in own if isinstance(own, Sequence) else [own]:
            _own(launch).check_none("no file of one is named (with, in a program with_)")
    launches = _own_of_each(own, len(files)) if files else []
    return tuple(
        own_peer(os.fspath(file), launch, problem)
        for file, launch in zip(files, launches, strict=True)
    )


def _of_file(
    named: str,
    gpu: str | None,
    query: ProblemQuery | None,
    keywords: ProblemKeywords,
    own: "Own | None",
) -> "Checks":
    """Return the program of a file, to be checked. Raises InvalidInput.

    That of an emitted one is executed on as many rows as the keywords say.
    """
    from explorer.devices.names import gpu_limits
    from explorer.devices.own_kernel import read_file
    from explorer.evaluate.verify import Checks

    launch, reads_dtype = _own(own), "dtype" not in keywords
    program = read_file(named, launch, query, reads_dtype=reads_dtype)
    if program.is_own:
        return Checks((program,), gpu_limits(gpu).arch)
    given = [n for n, value in keywords.items() if value is not None and n not in ("rows", "cols")]
    if given or (query is not None and not keywords):
        raise InvalidInput(
            f"{given[0] if given else 'problem'} says nothing of an emitted file, whose text tells "
            "what it computes; leave it out"
        )
    return Checks((program,), gpu_limits(gpu).arch, keywords.get("rows"))


def time(
    file: StrPath,
    problem: Problem | ProblemQuery | None = None,
    *,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str = "default",
    own: "Own | None" = None,
    **keywords: Unpack[ProblemKeywords],
) -> "TimedFile":
    """Verify the kernel of a file on a GPU, then time it, as `explorer time`.

    Args:
        file: A `FILE.cu`, as of `explorer.verify`: emitted, or with a kernel of your own.
        problem: What to compute, as of `explorer.verify`.
        device: `auto`, which is cuda:0, or `cuda:N`.
        timing: `cold` or `warm`, as of `explorer.search`.
        accuracy: The largest error allowed, `strict`, `default` or `fast`.
        own: How a kernel of your own is launched, where its file does not say it.

    Returns:
        The `verdict`; what was `measured`, None of a kernel that was not verified; and the
        `environment` with the limit's time. Times are microseconds a launch.

    Raises:
        InvalidInput: for a value that cannot be used, a file that cannot be read, or no GPU.
    """
    from explorer.evaluate.verify import time_file
    from explorer.report.notebook import TimedFile
    from explorer.report.records import as_kind

    query = query_of(time, problem, keywords)
    named, level = os.fspath(_path("file", file) or ""), Accuracy.parse(accuracy)
    checks = _of_file(named, None, query, keywords, own)
    (program,) = checks.programs
    timed = time_file(program, _text("device", device), checks.rows, timing, level)
    return as_kind(TimedFile, timed, path=Path(named))


# ------------------------------------------------------------------ compare


def compare(
    problems: "Problem | ProblemQuery | Iterable[Problem] | None" = None,
    *,
    peers: Sequence[str] | None = None,
    with_: StrPath | Sequence[StrPath] = (),
    own: "OwnOfEach | None" = None,
    peer_limit_s: float = 180.0,
    heuristic: bool = False,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str = "default",
    seed: int = 0,
    storage: StrPath | None = None,
    journal: StrPath | None = None,
    gpus: str | int | None = None,
    cluster: Any = None,
    progress: "Callable[[PeerRun], None] | None" = None,
    on_progress: "Callable[[RunProgress], None] | None" = None,
    on_peer: "Callable[[Entered | NotEntered], None] | None" = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "ComparedRun":
    """Time our best beside the limit and every installed peer on a GPU, as `explorer compare`.

    Args:
        problems: One or several, unless keywords say them, as of `explorer.tune`.
        peers: Their names, or module:attribute; None: all that are known.
        with_: Files of kernels of your own, timed beside them: FILE.cu or FILE.cu:KERNEL.
        own: How these are launched where their files do not say it, as of `explorer.verify`; a list
            for each of several files.
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
        gpus: As of `explorer.search`, and so is `cluster`: each GPU measures problems of its own.
        cluster: A Dask scheduler's address, or its file, or a cluster or a client of Dask.
        progress: Called after every problem with the run so far, which Ctrl-C would lose.
        on_progress: Called with a `RunProgress` before each problem, and after each peer.
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
    from explorer.peers import chosen_peers
    from explorer.peers.ahead import PeersAhead
    from explorer.report.notebook import PeerRun as ComparedRun
    from explorer.report.records import as_kind
    from explorer.tuning.runs import Listeners, RunSettings, compare_all

    heard = _Heard(notice, progress=progress, on_progress=on_progress, on_peer=on_peer)
    kept = _path("journal", journal)
    chosen = chosen_peers(_names("peers", peers or ()))
    level = Accuracy.parse(accuracy)
    stored = _storage(storage)
    theirs = _own_peers(with_, own, wanted[0])
    settings = RunSettings((*chosen, *theirs), heuristic, timing, level, seed)

    def told(run: "PeerRun") -> None:
        if progress is not None:
            progress(as_kind(ComparedRun, run))

    listeners = Listeners(heard, on_peer, told, on_progress)
    is_spread, made_by = (gpus, cluster) != (None, None), (timing, seed, level)
    with (
        _benches((_text("device", device), *made_by), gpus, cluster, heard) as benches,
        nullcontext() if is_spread else PeersAhead(benches.gpu) as ahead,
    ):
        run = compare_all(
            benches,
            wanted,
            settings,
            partial(_ours, storage=stored, notice=heard, heuristic=heuristic),
            journal=kept,
            ahead=ahead,
            limit_s=limit_s,
            tell=listeners,
        )
    return as_kind(ComparedRun, run)


def _names(what: str, names: Any) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"{what} is {shown(names)}; it must be a list of names")
    return [_text(f"one of {what}", name) for name in names]


def _ours(bench: "PeerBench", storage: str | None, notice: Notice, *, heuristic: bool) -> "Entry":
    """Return the stored search's best, or the heuristic's where there is none or none is wanted."""
    from explorer.tuning.peer_comparison import unsearched

    found = None if heuristic else _searched(bench, storage, notice)
    return found or unsearched(bench)


def _searched(bench: "PeerBench", storage: str | None, notice: Notice) -> "Entry | None":
    """Return the best of this problem's study, if there is a storage that has it."""
    try:
        from explorer.tuning.journey import stored_best
        from explorer.tuning.storage import open_storage
    except ImportError as error:
        notice(f"studies are not looked at: {error}")
        return None
    try:
        return stored_best(bench, open_storage(storage, read_only=True))
    except NotFound:
        return None


# ------------------------------------------------------------------ journey


def journey(
    problem: Problem | ProblemQuery | None = None,
    *,
    with_: StrPath | Sequence[StrPath] = (),
    own: "OwnOfEach | None" = None,
    budget_s: float | None = None,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str = "default",
    seed: int = 0,
    storage: StrPath | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_kernel: Callable[[str, int, int], None] | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Journey":
    """Time every published kernel and the search's best, as `explorer journey`.

    Args:
        problem: What to compute, unless keywords say it (`ProblemKeywords`).
        with_: Files of kernels of your own, timed beside them, as of `explorer.compare`.
        own: How these are launched, as of `explorer.compare`.
        budget_s: Seconds for a search first; None: 40 where none is stored, else none.
        device: `auto`, `cuda:N`, or a recording that has the published kernels.
        timing: `cold` or `warm`, as of `explorer.search`.
        accuracy: What the kernels must meet: `strict`, `default` or `fast`.
        seed: Of the inputs and of the search.
        storage: The Optuna storage with our searches; None: $EXPLORER_STORAGE,
            else explorer.db in studies/ or in the user's data folder.
        progress: Called with a `Progress` after every trial of a search.
        on_kernel: Called with the name of each kernel before it is timed, its number from 1, and
            how many there are.
        notice: Called with each sentence that the command line prints on stderr.

    Returns:
        The `steps`, the slowest first, and the kernels that were `left_out` with the reason. Times
        are microseconds a launch, one a round.

    Raises:
        InvalidInput: where there is no GPU, for a value that cannot be used, and for an op that no
            published kernel computes.
        NotFound: where fewer than two kernels could be measured.
        KeyboardInterrupt: by Ctrl-C, with the finished trials of a search kept.
    """
    from explorer.devices.names import why_no_gpu
    from explorer.evaluate.open_evaluator import open_evaluator
    from explorer.presets.published import unpublished
    from explorer.report.notebook import Journey
    from explorer.report.records import as_kind
    from explorer.tuning.journey import run_journey, without_gpu

    query = needed(query_of(journey, problem, keywords))
    wanted, kept, level = query.problem(), _storage(storage), Accuracy.parse(accuracy)
    seconds = None if budget_s is None else _seconds("budget_s", budget_s)
    seed = whole("seed", seed, 0)
    heard = _Heard(notice, progress=progress, on_kernel=on_kernel)
    why = why_no_gpu(_text("device", device))
    if told := unpublished(wanted.op):
        raise InvalidInput(told)
    theirs = _own_peers(with_, own, wanted)
    try:
        with ExitStack() as stack:
            opening = open_evaluator(wanted, device, timing, seed, level)
            try:
                evaluator = stack.enter_context(opening)
            except NotFound:
                if not why:
                    raise
                raise InvalidInput(
                    f"a journey needs a GPU, and there is none: {why}; {without_gpu(wanted)}"
                ) from None
            for sentence in [*evaluator.notices, *rows_notice(wanted, query.rows)]:
                heard(sentence)
            best = partial(_searched_best, evaluator, kept, seconds, seed, progress, heard)
            made = run_journey(evaluator, best, own=theirs, on_progress=on_kernel)
    except NotFound as error:
        raise NotFound(f"{why}, and {error}" if why else str(error)) from None
    return as_kind(Journey, made)


DEFAULT_BUDGET_S = 40.0
"""For the search of a journey whose problem was not searched before."""


def _searched_best(
    evaluator: "Evaluator",
    storage: str | None,
    budget_s: float | None,
    seed: int,
    progress: Callable[[Progress], None] | None,
    notice: Notice,
) -> "Entry":
    """Return the stored search's best; where there is none, or a budget, that of a search now."""
    from explorer.report.text import seconds
    from explorer.tuning.contest import Entry
    from explorer.tuning.journey import stored_best
    from explorer.tuning.search import run_search
    from explorer.tuning.storage import open_storage

    opened = open_storage(storage)
    found = stored_best(evaluator, opened)
    if found is not None and budget_s is None:
        notice(f"the search's best is {found.origin}")
        return found
    budget_s = budget_s or DEFAULT_BUDGET_S
    if found is None:
        notice(f"no search of this problem is stored: searching for {seconds(budget_s)} first")
    result = run_search(evaluator, opened, budget_s=budget_s, seed=seed, on_progress=progress)
    winner = result.finals.winner.trial
    return Entry(winner.config, f"trial {winner.number} of study {result.study}")


# ------------------------------------------------------------------ tune


def tune(
    problems: Iterable[Problem | ProblemQuery] | None = None,
    *,
    effort: str = "default",
    where: "Conditions" = None,
    torch: bool = True,
    missing: bool = False,
    output: StrPath | None = None,
    device: str = "auto",
    timing: str = "cold",
    accuracy: str | None = None,
    seed: int = 0,
    gpus: str | int | None = None,
    cluster: Any = None,
    progress: Callable[["RunProgress"], None] | None = None,
    notice: Notice | None = None,
    **keywords: Any,
) -> "Tuned":
    """Find the best kernel of each problem and keep them as a table, as `explorer tune`.

    All problems share a list of candidates, and each is timed on each of them. What is finished is
    kept at once beside the table, in a file that ends in .partial.jsonl, so that the same call goes
    on after an interruption. That file goes once all problems are tuned.

    Args:
        problems: What to tune, unless keywords say it: those of `ProblemKeywords`, of which `cols`,
            `rows`, `dtype` and `op` may be lists, and then all combinations are meant.
        effort: `quick`, `default` or `full`: how often the best few are varied.
        where: The values that are left of some parameters, as of `explorer.search`.
        torch: Whether torch's own function is timed beside the best, where torch is installed.
        missing: Leave out the problems that the table has already, where they were measured by this
            version and in the way that is asked for.
        output: The table's file, which is added to; None: tuned/<gpu>.json
            in studies/ or in the user's data folder.
        device: `auto`, the first GPU, or `cuda:N`.
        timing: `cold`: launches rotate over buffers of 4 x L2; `warm`: they stay on one.
        accuracy: `strict`, `default` or `fast`; None: default.
        seed: Of the inputs, and of the order in which finalists are timed.
        gpus: As of `explorer.search`, and so is `cluster`: each GPU measures problems of its own.
        cluster: A Dask scheduler's address, or its file, or a cluster or a client of Dask.
        progress: Called with a `RunProgress` before each problem.
        notice: Called with each sentence of the result's `notices`, at once.

    Returns:
        The table of these problems, those of which nothing was measured with the reason, and the
        path of the file. Times are microseconds a launch.

    Raises:
        InvalidInput: where there is no GPU, for a value that cannot be used, and for a file that is
            no table or of another GPU.
        KeyboardInterrupt: by Ctrl-C, with all finished problems kept.
    """
    wanted = several_of(tune, problems, keywords)
    level, file = Effort.parse(effort), _path("output", output)
    exactness = Accuracy.parse(accuracy) if accuracy else Accuracy.DEFAULT
    only = {problem: restriction(where, problem) for problem in wanted}
    from explorer.model.tuned_table import write_table
    from explorer.peers import known_peers
    from explorer.tuning.tune import tune as tune_all

    heard = _Heard(notice, progress=progress)
    settings = (_text("device", device), timing, whole("seed", seed, 0), exactness)
    without = "without one, explorer search replays what explorer recordings lists"
    opened = _benches(settings, gpus, cluster, heard, wanted="tuning", instead=without)
    with opened as benches:
        path, kept = _table_so_far(file, benches.gpu)
        journal = path.with_suffix(".partial.jsonl")
        resumes = partial(_is_as_asked, asked=(timing, exactness, level), where=only)
        try:
            run = tune_all(
                benches,
                wanted,
                journal,
                effort=level,
                where=only,
                torch=known_peers()["torch"] if torch else None,
                resumes=resumes,
                known=kept.problems if missing else (),
                notice=heard,
                tell=progress,
            )
        except KeyboardInterrupt:
            write_table(_with_journal(kept, journal, resumes), path)
            raise
    if run.table.problems:
        write_table(kept.with_(run.table.problems), path)
    if not run.untuned:
        journal.unlink(missing_ok=True)
    from explorer.report.notebook import Tuned

    return Tuned(run, path, tuple(heard.sentences))


def _with_journal(
    kept: "TunedTable", journal: Path, resumes: Callable[["TunedProblem"], bool]
) -> "TunedTable":
    """Return a table with what a run has finished since."""
    from explorer.model.tuned_table import read_journal

    return kept.with_(filter(resumes, read_journal(journal, kept.gpu)))


def _is_as_asked(
    one: "TunedProblem", *, asked: tuple[str, Accuracy, Effort], where: Mapping[Problem, Where]
) -> bool:
    """Whether a problem that an earlier run tuned is what this run would come to."""
    from explorer.evaluate.space_version import is_of_today

    made = one.environment
    as_asked = (made.timing, made.accuracy, one.effort) == asked
    same_kernels = one.where == where_words(where.get(one.problem, {}))
    return is_of_today(made, one.problem) and as_asked and same_kernels


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


# ------------------------------------------------------------------ look at studies


def show(
    problem: Problem | ProblemQuery | None = None,
    *,
    accuracy: str | None = None,
    objectives: "str | Score | Objectives" = "time",
    storage: StrPath | None = None,
    study: str | None = None,
    gpu: str | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "StudyHistory":
    """Return what a search found, with every trial, as `explorer show`.

    Args:
        problem: What was searched, unless keywords or `study` say it (`ProblemKeywords`).
        accuracy: What its kernels had to meet; None: as usual.
        objectives: Of the study, as of `explorer.search`; a function need not be there any more.
        storage: The Optuna storage that has it; None: $EXPLORER_STORAGE, else explorer.db in
            studies/ or in the user's data folder.
        study: Its name, or a part of it that no other has; it says the problem, too.
        gpu: Its GPU, where studies of several fit.
        notice: Called with a sentence on trials that cannot be read.

    Returns:
        The study's `view` and its `attempts`. `to_dict()` is what `--json` prints, `records()` and
        `to_frame()` have each trial as `--csv` does. Times are microseconds a launch.

    Raises:
        NotFound: where there is no such study.
        InvalidInput: where several fit, which it names, and for a value that cannot be used.
    """
    from explorer.report.notebook import StudyHistory
    from explorer.report.records import as_kind
    from explorer.tuning.study_reader import load_history, open_to_read

    query, kept = query_of(show, problem, keywords), _storage(storage)
    goal, heard = _goal(objectives, accuracy, study, gpu), _Heard(notice)
    found = load_history(*open_to_read(kept, query, goal))
    if found.view.passed_over:
        heard(found.view.passed_over)
    return as_kind(StudyHistory, found, storage=kept)


def studies(
    *, storage: StrPath | None = None, notice: Notice | None = None
) -> "Records[StudySummary]":
    """Return what was searched so far, a line a study, as `explorer studies`.

    `notice` is called with a sentence on each study that cannot be read. Raises NotFound where
    there is no storage yet, InvalidInput for one that cannot be read.
    """
    from explorer.report.records import Records
    from explorer.report.studies import SUMMARY
    from explorer.tuning.storage import SEARCH, file_of, open_storage
    from explorer.tuning.study_reader import survey

    heard, kept = _Heard(notice), _storage(storage)
    opened = open_storage(kept, read_only=True)
    found = survey(opened)
    if found.faults and not found.summaries:
        raise InvalidInput(f"the storage has no study that can be read: {found.faults[0]}")
    if not found.summaries:
        raise NotFound(f"no study yet: storage {file_of(opened) or kept} has none; run {SEARCH}")
    for fault in found.faults:
        heard(fault)
    return Records("studies", tuple(found.summaries), SUMMARY)


def side_by_side(*named: str, storage: StrPath | None = None) -> "SideBySide":
    """Put results side by side, as `explorer compare --from A --against B`.

    Each is a kept comparison or a tuned table, by its file, a table of the package, by its name, or
    a study of the storage, by its name or a part of it. Shares are of the limit of each one's own
    GPU. Raises InvalidInput for fewer than two, and where they have no problem in common; NotFound
    where a name fits none.
    """
    from explorer.report.side_by_side import beside

    if len(named) < 2:
        raise InvalidInput(f"side_by_side has {len(named)} results; name two at least")
    return beside([os.fspath(_path("result", one) or "") for one in named], _storage(storage))


def write_report(
    problem: Problem | ProblemQuery | None = None,
    *,
    output: StrPath = "report.html",
    from_: Sequence[str] = (),
    accuracy: str | None = None,
    objectives: "str | Score | Objectives" = "time",
    storage: StrPath | None = None,
    study: str | None = None,
    gpu: str | None = None,
    notice: Notice | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> Path:
    """Write a page with charts, as `explorer report`, and return its path.

    Args:
        problem: Of the study to show, unless keywords or `study` say it; None: what `from_` names
            alone.
        output: The page to write; only another page of ours is replaced.
        from_: Files, tables of the package and studies, as of `explorer.side_by_side`; several of
            one kind stand side by side.
        accuracy: As of `explorer.show`, as are all other arguments.

    Raises:
        InvalidInput: where there is nothing to show, for a file that cannot be written, and where
            the extra 'softmax-explorer[report]' is not installed.
        NotFound: where there is no such study.
    """
    from explorer.report.charts import altair
    from explorer.report.page import page_html
    from explorer.report.pages import kept_pages, study_page
    from explorer.system.user_files import PAGE, check_replaceable, write_file

    query, path = query_of(write_report, problem, keywords), _path("output", output) or Path()
    if query is None and not study and not from_:
        raise InvalidInput(
            "nothing to report on: give --cols 4096 or --study NAME for a study, or --from NAME "
            "for a comparison, a journey or a tuned table (in a program cols, study and from_)"
        )
    if path.suffix not in (".html", ".htm"):
        raise InvalidInput(f"output is {str(path)!r}; name a file that ends in .html")
    altair()
    remedy = "name another --output"
    check_replaceable(path, PAGE, remedy)
    pages = kept_pages([os.fspath(one) for one in from_], _storage(storage))
    if query is not None or study:
        shown = show(
            query,
            accuracy=accuracy,
            objectives=objectives,
            storage=storage,
            study=study,
            gpu=gpu,
            notice=notice,
        )
        pages.insert(0, study_page(shown))
    sections = [section for page in pages for section in page.sections]
    text = page_html(pages[0].title, " ".join(page.lead for page in pages), sections)
    write_file(path, text, remedy)
    return path


# ------------------------------------------------------------------ look at kernels


def describe_space(
    problem: Problem | ProblemQuery | None = None,
    *,
    parameters: Sequence[str] = (),
    where: "Conditions" = None,
    gpu: str | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "SpaceView":
    """Return the parameters of a problem's kernels, their values and the rules.

    As `explorer space`. `parameters` names those that are wanted, and `where` the values that are
    left of some. Raises InvalidInput for what there is not.
    """
    from explorer.devices.names import gpu_limits, gpu_words
    from explorer.report.space import SpaceView
    from explorer.space import Space

    wanted = needed(query_of(describe_space, problem, keywords)).problem()
    fixed, limits = restriction(where, wanted), gpu_limits(_gpu(gpu))
    words = gpu_words(limits, gpu, with_arch=True)
    return SpaceView(
        Space(wanted, limits, fixed), fixed, tuple(_names("parameters", parameters)), words
    )


def find_presets(
    problem: Problem | ProblemQuery | None = None,
    *,
    text: str = "",
    legal: bool = False,
    where: "Conditions" = None,
    gpu: str | None = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Records[PresetLine]":
    """Return published kernels, with a problem which of them can compute it.

    As `explorer presets`: without a problem, the keywords `op` and `dtype` alone choose those that
    can compute that operator and type. `text` stands in a name, in what they do or in what they are
    from; `legal` and `where` ask what they are for the problem. Raises InvalidInput.
    """
    from explorer.devices.names import gpu_limits
    from explorer.report.records import Records
    from explorer.report.space import PRESET, PresetFilter, preset_lines, preset_rows

    op = dtype = None
    is_kind = problem is None and keywords.keys() <= {"op", "dtype"}
    if is_kind:
        op = Op.parse(_text("op", keywords["op"])) if "op" in keywords else None
        dtype = DType.parse(keywords["dtype"]) if "dtype" in keywords else None
        if legal or where:
            raise InvalidInput(
                "legal and where ask what a preset is for a problem: give the number of cols"
            )
    query = None if is_kind else needed(query_of(find_presets, problem, keywords))
    wanted = None if query is None else query.problem()
    fixed = {} if wanted is None else restriction(where, wanted)
    chosen = PresetFilter(_text("text", text), op, dtype, fixed, only_legal=legal)
    lines = preset_lines(wanted, None if wanted is None else gpu_limits(_gpu(gpu)))
    return Records("presets", tuple(filter(chosen.passes, lines)), PRESET, preset_rows)


def profile(
    what: "What",
    problem: Problem | ProblemQuery | None = None,
    *,
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    batch_invariant: bool = False,
    storage: StrPath | None = None,
    study: str | None = None,
    notice: Notice | None = None,
    own: "Own | None" = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Profile":
    """Count what a kernel does, as `explorer profile`: traffic, instructions, occupancy.

    No GPU is needed. The arguments are those of `explorer.emit`; `what` may also be a `FILE.cu`,
    which `own` says how to launch if it is of your own. Raises as that does.
    """
    from explorer.evaluate.profile import profile as count_work
    from explorer.export.named import program_of
    from explorer.report.notebook import Profile
    from explorer.report.records import as_kind

    query, heard = query_of(profile, problem, keywords), _Heard(notice)
    scope = _scope(query, gpu, accuracy, objectives, batch_invariant, storage, study, heard)
    reads_dtype = "dtype" not in keywords
    program, limits = program_of(what, scope, _own(own), reads_dtype=reads_dtype)
    return as_kind(Profile, count_work(program, limits))


def diff(
    a: "What",
    b: "What",
    problem: Problem | ProblemQuery | None = None,
    *,
    gpu: str | None = None,
    accuracy: str | None = None,
    objectives: str = "time",
    batch_invariant: bool = False,
    storage: StrPath | None = None,
    study: str | None = None,
    notice: Notice | None = None,
    own: "OwnOfEach | None" = None,
    **keywords: Unpack[ProblemKeywords],
) -> "Difference":
    """Put two kernels side by side, as `explorer diff`: config, source, resources, counts, times.

    No GPU is needed. `a`, `b` and `own` are as `what` and `own` of `explorer.profile`, as are the
    other arguments; `own` may also be a list of two, for each of two files. Raises as that does.
    """
    from explorer.evaluate.profile import inspect
    from explorer.export.named import two_programs
    from explorer.report.diff import Difference

    query, heard = query_of(diff, problem, keywords), _Heard(notice)
    scope = _scope(query, gpu, accuracy, objectives, batch_invariant, storage, study, heard)
    reads_dtype = "dtype" not in keywords
    two = two_programs((a, b), scope, _own_of_each(own, 2), reads_dtype=reads_dtype)
    one, other = (inspect(program, two.gpu) for program in two.programs)
    return Difference((str(a), str(b)), (one, other), two.times)


def table(named: StrPath) -> "Tuned":
    """Return a tuned table by its file, or by the name of one of the package.

    As `explorer table show`. Raises InvalidInput for a file that is none of this version.
    """
    from explorer.model.tuned_table import read_table
    from explorer.report.notebook import Tuned
    from explorer.tuning.tune import TuneRun

    path = _path("table", named) or Path()
    return Tuned(TuneRun(read_table(path), (), 0), path)


# ------------------------------------------------------------------ the cache


def cache(*, clear: bool = False) -> "CacheFolder":
    """Return where compiled kernels are kept, and how much that is, as `explorer cache`.

    With `clear` they are deleted, as by `explorer cache clear`; the result says how many were. Each
    is compiled again where it is needed. Raises InvalidInput for a file that cannot be deleted.
    """
    from explorer.compile.compiler import CacheFolder

    if not isinstance(clear, bool):
        raise InvalidInput(f"clear is {shown(clear)}; it must be True or False")
    found = CacheFolder.of_user()
    if clear:
        found.clear()
    return found
