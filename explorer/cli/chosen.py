"""The variant that WHAT names: best, a trial, the heuristic, a preset, or a config as JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explorer.asked import AskedProblem
from explorer.cli.options import gpu_limits
from explorer.cli.output import say
from explorer.cli.problem import rows_notice
from explorer.errors import InvalidInput
from explorer.gpu_spec import GpuSpec, is_known_gpu, known_gpu
from explorer.tuning.objective import Goal, Objectives

if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.export import Choice


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant and where it runs."""

    variant: "Variant"
    arch: str
    """Of the GPU that it was measured on, or is to run on."""
    gpu: GpuSpec | None
    """That GPU's limits, where they are known."""


def chosen_variant(
    what: str,
    asked: AskedProblem,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    *,
    batch_invariant: bool = False,
) -> Chosen:
    """What WHAT names, with the GPU that it was measured on unless another one is named.

    The best and trials are of the study with that goal. Of the heuristic a `batch_invariant`
    config is the same for all numbers of rows. Raises InvalidInput for what is none of these or no
    legal config, NotFound for a trial that is not there.
    """
    from explorer.export import HEURISTIC, is_of_study, parse_choice

    choice = parse_choice(what)
    if batch_invariant and choice != HEURISTIC:
        raise InvalidInput(
            f"--batch-invariant makes the heuristic take one config for all rows; {what} is one "
            "config whatever the rows: leave it out"
        )
    if is_of_study(choice):
        return _of_study(choice, asked, gpu, storage, goal)
    if goal.objectives is Objectives.TIME_ERROR:
        raise InvalidInput(
            f"--objectives says in which study a trial is; {what} is none: leave it out"
        )
    return _of_config(choice, asked, gpu, goal, batch_invariant=batch_invariant)


def _of_config(
    choice: "Choice", asked: AskedProblem, gpu: str | None, goal: Goal, *, batch_invariant: bool
) -> Chosen:
    """A config that is written out, a preset's, or the heuristic's."""
    from explorer.codegen import emit
    from explorer.config import Config
    from explorer.export import checked_config
    from explorer.space import config_for

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
    for notice in rows_notice(problem, asked.rows):
        say(notice)
    return Chosen(variant, limits.arch, limits)


def _of_study(
    which: str | int, asked: AskedProblem, gpu: str | None, storage: str | None, goal: Goal
) -> Chosen:
    """The best trial of a study, or one by its number."""
    from explorer.export import variant_of
    from explorer.tuning import find_trial, load_study, open_storage

    opened = open_storage(storage, read_only=True)
    study = load_study(opened, asked, goal)
    if study.passed_over:
        say(study.passed_over)
    problem = study.summary.problem
    replayed = study.circumstances if study.summary.replayed else None
    variant = variant_of(find_trial(opened, problem, which, goal), problem, replayed)
    name = gpu or study.circumstances.gpu
    measured_on = known_gpu(name) if gpu or is_known_gpu(name) else None
    arch = measured_on.arch if measured_on else study.circumstances.arch
    return Chosen(variant, arch, measured_on)
