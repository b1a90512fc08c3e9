"""`explorer diff`: two kernels of one problem side by side."""

from typing import Annotated

from explorer.cli import completions
from explorer.cli.options import (
    AccuracyOrNone,
    BatchInvariant,
    Gpu,
    Json,
    Minimised,
    Storage,
    Study,
    argument,
    option,
    words,
)
from explorer.cli.output import say
from explorer.cli.problem import with_problem
from explorer.model.asked import AskedProblem
from explorer.model.errors import InvalidInput
from explorer.tuning.objective import Goal, Objectives

NONE = "none"

FORMS = "best, a trial's number, heuristic, a preset, or a config as JSON."

First = Annotated[str, argument("A", FORMS, completions.variants)]
Second = Annotated[str, argument("B", "As A.", completions.variants)]
Show = Annotated[
    str,
    option(
        "--show TEXT,TEXT",
        "Texts to compare line by line: source, ptx, sass (which takes "
        "softmax-explorer[sass]), or none.",
        complete=completions.among("source", "ptx", "sass", "source,ptx,sass", NONE),
    ),
]


@with_problem
def diff(
    a: First,
    b: Second,
    asked: AskedProblem | None,
    show: Show = "source",
    gpu: Gpu = None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    batch_invariant: BatchInvariant = False,
    storage: Storage = None,
    study: Study = None,
    json: Json = False,
) -> None:
    """Show two kernels side by side: config, source, resources, counts, times if known."""
    from explorer.devices.names import gpu_words
    from explorer.evaluate.profile import MISSING, inspect
    from explorer.export.choice import (
        Scope,
        is_of_study,
        known_times_of,
        parse_choice,
        two_variants,
    )
    from explorer.model.gpu_spec import known_gpu_for
    from explorer.report.diff import SASS, Difference, difference_data, print_difference
    from explorer.report.table import results
    from explorer.report.text import as_json

    shown = _shown(show)
    goal = Goal.of(objectives, accuracy, study)
    scope = Scope(asked, gpu, storage, goal, say, batch_invariant)
    chosen = two_variants((a, b), scope)
    limits = chosen[0].gpu or chosen[1].gpu or known_gpu_for(chosen[0].arch)
    one, other = (inspect(each.variant, limits) for each in chosen)
    if SASS in shown and (one.no_sass or other.no_sass):
        raise InvalidInput(f"sass cannot be shown: {one.no_sass or other.no_sass or MISSING}")
    variants = (one.variant, other.variant)
    times = known_times_of(variants, limits, scope)
    of_study = is_of_study(parse_choice(a)) or is_of_study(parse_choice(b))
    where = f"on {limits.name}" if of_study and gpu is None else gpu_words(limits, gpu)
    difference = Difference((a, b), (one, other), times, where)
    if json:
        print(as_json(difference_data(difference, shown)))
    else:
        print_difference(difference, shown, results())


def _shown(text: str) -> tuple[str, ...]:
    """The texts that are asked for; raises InvalidInput."""
    from explorer.report.diff import TEXTS

    if text == NONE:
        return ()
    asked = words("show", text)
    unknown = [word for word in asked if word not in TEXTS]
    if unknown:
        raise InvalidInput(
            f"show is {text!r}; write some of {', '.join(TEXTS)} with commas, or {NONE}"
        )
    return tuple(name for name in TEXTS if name in asked)
