"""The kernel that WHAT names: a trial of a study, the heuristic's, a preset or a config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from explorer.codegen.units import emit
from explorer.codegen.variant import Variant, can_overlap
from explorer.devices.names import gpu_limits
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.residency import MeasuredWith
from explorer.evaluate.verify import Checks
from explorer.evaluate.without_search import without_search
from explorer.model.config import COHERENT_HINTS, Config, config_values
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import GpuSpec, is_known_gpu, known_gpu, known_gpu_for
from explorer.model.outcome import Environment, TrialRecord
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, command_of, needed, rows_notice
from explorer.presets.ladder import RUNGS
from explorer.presets.preset import Preset
from explorer.presets.published import PRESET_NAMES, find_preset
from explorer.space import Space, can_emit
from explorer.space.candidates import as_taken
from explorer.system.plain_data import nearest, shown
from explorer.tuning.objective import Goal, Objectives

if TYPE_CHECKING:
    from explorer.tuning.known_times import KnownTimes

# ------------------------------------------------------------------ what WHAT may be

BEST = "best"
HEURISTIC = "heuristic"

MOST_DIGITS = 15
"""Of a trial's number."""


@dataclass(frozen=True, slots=True)
class PartialConfig:
    """A config, and the parameters that whoever wrote it has named."""

    config: Config
    named: frozenset[str]

    def fitted(self, problem: Problem, gpu: GpuSpec) -> Config:
        """Return the config with values that the problem has for the parameters left out.

        Their defaults are for softmax: attention has others, and a logarithm keeps no exponentials.
        """
        values = as_taken(self.config, problem).as_dict()
        for name, allowed in Space(problem, gpu).parameters.items():
            if name in self.named:
                values[name] = getattr(self.config, name)
            elif values[name] not in allowed:
                values[name] = allowed[0]
        return Config(**values)


Choice = str | int | PartialConfig | Preset
"""BEST or HEURISTIC, a trial's number, a config, or a published kernel."""


def is_of_study(choice: Choice) -> TypeGuard[str | int]:
    """Whether it is a trial of a study: its best, or one by its number."""
    return isinstance(choice, int) or choice == BEST


What = str | int | Config | Mapping[str, Any]
"""`best`, a trial's number, `heuristic`, a preset's name, or a config, also as JSON or a dict."""


def parse_choice(what: What) -> Choice:
    """Read WHAT of `explorer emit`; raises InvalidInput saying its forms."""
    if isinstance(what, Mapping):
        return PartialConfig(Config.from_dict(what), frozenset(what))
    if isinstance(what, Config):
        what.check_known()
        return PartialConfig(what, frozenset(what.as_dict()))
    if isinstance(what, bool) or not isinstance(what, str | int):
        raise InvalidInput(
            f"what is {shown(what)}; it must be text such as 'heuristic', a trial's number or an "
            "explorer.Config"
        )
    stripped = str(what).strip()
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
        return parse_choice(config_values(stripped))
    if stripped.endswith(".cu") or "/" in stripped:
        raise InvalidInput(
            f"{shown(what)} names a file; explorer verify, time, profile, diff and compare --with "
            "take files, whose names end in .cu"
        )
    try:
        return find_preset(stripped)
    except InvalidInput:
        ideas = [rung.preset for rung in RUNGS if stripped.lower() in rung.idea.lower()]
        near = f"{stripped} is an idea of {', '.join(ideas)}" if stripped and ideas else ""
        near = near or nearest(stripped, [BEST, HEURISTIC, *PRESET_NAMES])
        raise InvalidInput(
            f"{shown(what)} is no kernel: give {_FORMS}{near and '; '}{near}"
        ) from None


_FORMS = (
    "best, a trial's number such as 12, heuristic, a preset that explorer presets lists, a config "
    "as JSON such as '{\"threads\":256}', or, to verify and time, an emitted FILE.cu"
)


# ------------------------------------------------------------------ a kernel and where it runs


@dataclass(frozen=True, slots=True)
class Scope:
    """The problem, the GPU and the study in which a word names a kernel."""

    query: ProblemQuery | None
    gpu: str | None
    """The GPU whose limits count; None: that of the study, else the one here, else the default."""
    storage: str | None
    goal: Goal
    """That of the study, and what the heuristic's kernel must meet."""
    notice: Callable[[str], None]
    """Called with each sentence that a user should read."""
    batch_invariant: bool = False
    """Whether the heuristic's config is the same for all numbers of rows."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant and where it runs."""

    variant: Variant
    arch: str
    """Of the GPU that it was measured on, or is to run on."""
    gpu: GpuSpec | None
    """That GPU's limits, where they are known."""
    study: str = ""
    """The name of the study that it is of; empty where it is of none."""
    measured: MeasuredWith | None = None
    """What it was measured with; None where this code was not measured on this GPU."""


def chosen_variant(what: What, scope: Scope) -> Chosen:
    """Return what WHAT names, with the GPU that it was measured on unless another one is named.

    Raises InvalidInput for what is none of its forms, no legal config, or without a problem, and
    NotFound for a trial that is not there.
    """
    choice, goal = parse_choice(what), scope.goal
    if scope.batch_invariant and choice != HEURISTIC:
        raise InvalidInput(
            f"batch-invariant configs are the heuristic's alone; {what} is one config whatever the "
            "rows are: leave batch-invariant out"
        )
    if is_of_study(choice):
        return _of_study(choice, scope)
    if goal.objectives != Objectives.TIME:
        raise InvalidInput(
            f"objectives say in which study a trial is; {what} is none: leave objectives out"
        )
    if goal.study:
        raise InvalidInput(f"study names the study of a trial; {what} is none: leave study out")
    return _of_config(choice, needed(scope.query), scope)


def two_variants(named: tuple[What, What], scope: Scope) -> tuple[Chosen, Chosen]:
    """Return what two WHATs name, of the same problem and for the same GPU.

    If one of them is of a study, the other one has its problem and its GPU, too. A batch-invariant
    config is asked of the heuristic alone. Raises as `chosen_variant`.
    """
    choices = [parse_choice(what) for what in named]
    if scope.batch_invariant and HEURISTIC not in choices:
        raise InvalidInput(
            "batch-invariant configs are the heuristic's alone, and neither of the two is the "
            "heuristic: leave batch-invariant out"
        )
    found: dict[int, Chosen] = {}
    for place in sorted((0, 1), key=lambda place: not is_of_study(choices[place])):
        goal = scope.goal
        own = replace(
            scope,
            goal=goal if is_of_study(choices[place]) else Goal(accuracy=goal.accuracy),
            batch_invariant=scope.batch_invariant and choices[place] == HEURISTIC,
        )
        chosen = found[place] = chosen_variant(named[place], own)
        gpu = chosen.gpu.name if chosen.gpu else known_gpu_for(chosen.arch).name
        query = ProblemQuery.of(chosen.variant.problem)
        scope = replace(scope, query=query, gpu=scope.gpu or gpu)
    return found[0], found[1]


def known_times_of(variants: Sequence[Variant], gpu: GpuSpec, scope: Scope) -> "KnownTimes | None":
    """Return the times that variants of one problem took on a GPU, from the source with most.

    Raises InvalidInput where the storage cannot be read.
    """
    from explorer.tuning.known_times import known_times
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_reader import searching

    command = searching(ProblemQuery.of(variants[0].problem), scope.goal)
    try:
        opened = open_storage(scope.storage, read_only=True, command=command)
    except NotFound:  # nothing was searched yet
        opened = None
    return known_times(variants, gpu, opened, scope.goal)


def named_checks(what: What, rows: int | None, scope: Scope) -> Checks:
    """Return what WHAT names, to be checked. Raises as `chosen_variant`.

    `rows` that are given are executed. They choose the heuristic's config, but no trial.
    """
    choice = parse_choice(what)
    if rows is not None and scope.query is not None and is_of_study(choice):
        scope = replace(scope, query=scope.query.without_rows())
    chosen = chosen_variant(what, scope)
    executed = None if choice == HEURISTIC else rows
    return Checks((ProgramUnderTest.of(chosen.variant),), chosen.arch, executed)


def _of_config(choice: Choice, query: ProblemQuery, scope: Scope) -> Chosen:
    """Return a config that is written out, a preset's, or the heuristic's."""
    limits, problem, measured = gpu_limits(scope.gpu), query.problem(), None
    if isinstance(choice, str | int):
        taken = without_search(
            problem,
            limits,
            batch_invariant=scope.batch_invariant,
            accuracy=scope.goal.accuracy,
        )
        config, measured = taken.config, taken.measured
        scope.notice(f"without a search: {taken.origin}")
    elif isinstance(choice, PartialConfig):
        config = checked_config(choice.fitted(problem, limits), problem, limits)
    else:
        config = choice.config(problem, limits)
        if told := choice.idle(problem, limits):
            scope.notice(told)
    variant = emit(problem, config)
    for sentence in rows_notice(problem, query.rows):
        scope.notice(sentence)
    return Chosen(variant, limits.arch, limits, measured=measured)


def _of_study(which: str | int, scope: Scope) -> Chosen:
    """Return the best trial of a study, or one by its number."""
    from explorer.tuning.study_reader import load_trial, open_to_read

    gpu, query = scope.gpu, scope.query
    try:
        opened, asked, goal = open_to_read(scope.storage, query, scope.goal)
        study, trial = load_trial(opened, asked, which, goal, gpu)
    except NotFound as error:
        if query is None or which != BEST or query.without_search in str(error):
            raise
        remedy = f"or take a kernel without a search: {query.without_search}"
        raise NotFound(f"{error}; {remedy}") from None
    problem = study.summary.problem
    variant = variant_of(trial, problem, replayed=study.summary.replayed)
    for sentence in (study.passed_over, age_of(variant, trial, study.environment)):
        if sentence:
            scope.notice(sentence)
    name = gpu or study.environment.gpu
    limits = known_gpu(name) if gpu or is_known_gpu(name) else None
    if limits is not None and limits.name != study.environment.gpu:  # else it was launched there
        checked_config(variant.config, problem, limits)
        scope.notice(
            f"trial {trial.number} was measured on {study.environment.gpu}: no study is of "
            f"{limits.name}"
        )
    arch = limits.arch if limits else study.environment.arch
    made, measured = study.environment, None
    if variant.digest == trial.outcome.digest and (limits is None or limits.name == made.gpu):
        measured = MeasuredWith(made.nvrtc, trial.outcome.resources.registers)
    return Chosen(variant, arch, limits, study.summary.name, measured)


def checked_config(config: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the config; raises InvalidInput with the sentence of the rule that it breaks."""
    space = Space(problem, gpu)
    foreign = space.foreign_value(config)
    if foreign is not None:
        raise InvalidInput(f"config cannot be emitted: {foreign}")
    rule = space.broken_rule(config)
    if rule is not None:
        raise InvalidInput(
            f"config cannot be emitted for {problem} on {gpu.name}: {space.reason(rule, config)}"
        )
    return config


# ------------------------------------------------------------------ a trial's kernel


def variant_of(trial: TrialRecord, problem: Problem, *, replayed: bool = False) -> Variant:
    """Return what the templates emit for a trial's config.

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


def with_main(variant: Variant, main: bool = True) -> Variant:
    """Return the same kernel in a file with a `main()` that checks and times it, or without."""
    overlapped = variant.launches[0].overlaps
    return emit(variant.problem, variant.config, overlapped=overlapped, main=main)


def age_of(variant: Variant, trial: TrialRecord, recorded: Environment) -> str:
    """Say that a replayed trial's time is of other code than `variant`; nothing where it is not."""
    if variant.digest == trial.outcome.digest:
        return ""
    return (
        f"the recording made on {recorded.gpu} on {recorded.date[:10]} is older than the "
        f"templates: the time of trial {trial.number} is of other code than they emit now for its "
        "config"
    )
