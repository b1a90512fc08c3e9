"""What kernels are and do, not timed: `explorer profile` of one, `explorer diff` of two."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from explorer.cli import completions
from explorer.cli.options import NAMED, JsonOption, KernelOptions, What, argument, option, words
from explorer.cli.output import show_result
from explorer.cli.problem import with_problem
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery

if TYPE_CHECKING:
    from explorer.codegen.variant import Variant
    from explorer.evaluate.nsight import NsightFigures

ProfileDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "emulated; cuda:N adds Nsight Compute's figures; auto: cuda:0 if there is one.",
        complete=completions.among("auto", "cuda:0", "emulated"),
    ),
]


@with_problem
def profile(
    what: What,
    query: ProblemQuery | None,
    of: KernelOptions,
    out: JsonOption,
    device: ProfileDevice = "auto",
) -> None:
    """Count what a kernel does: traffic, conflicts, instructions, occupancy."""
    from explorer.devices.names import device_index, gpu_limits, gpu_or_emulator
    from explorer.evaluate.profile import profile as profile_variant
    from explorer.export.choice import chosen_variant
    from explorer.model.gpu_spec import known_gpu_for
    from explorer.report.profile import print_profile, profile_data

    index = device_index(gpu_or_emulator(device))
    chosen = chosen_variant(what, of.scope(query))
    limits = chosen.gpu or known_gpu_for(chosen.arch)
    if index is not None:
        limits = gpu_limits(None)
    counted = profile_variant(chosen.variant, limits)
    nsight = None if index is None else _nsight(chosen.variant, index)
    show_result(
        out.form,
        partial(print_profile, counted, nsight),
        partial(profile_data, counted, nsight),
    )


def _nsight(variant: "Variant", index: int) -> "NsightFigures | str":
    from explorer.evaluate.nsight import nsight_figures

    return nsight_figures(variant.problem, variant.config, index)


# ------------------------------------------------------------------ explorer diff


NONE = "none"

First = Annotated[str, argument("A", NAMED, completions.variants)]
Second = Annotated[str, argument("B", "As A.", completions.variants)]

Show = Annotated[
    str,
    option(
        "--show TEXT,TEXT",
        "Texts to compare line by line: source, ptx, sass (which takes softmax-explorer[sass]), "
        "or none.",
        complete=completions.among("source", "ptx", "sass", "source,ptx,sass", NONE),
    ),
]


@with_problem
def diff(
    a: First,
    b: Second,
    query: ProblemQuery | None,
    of: KernelOptions,
    out: JsonOption,
    show: Show = "source",
) -> None:
    """Show two kernels side by side: config, source, resources, counts, times if known."""
    from explorer.devices.names import gpu_words
    from explorer.evaluate.profile import MISSING, inspect
    from explorer.export.choice import (
        is_of_study,
        known_times_of,
        parse_choice,
        two_variants,
    )
    from explorer.model.gpu_spec import known_gpu_for
    from explorer.report.diff import SASS, Difference, difference_data, print_difference

    shown = _shown(show)
    scope = of.scope(query)
    chosen = two_variants((a, b), scope)
    limits = chosen[0].gpu or chosen[1].gpu or known_gpu_for(chosen[0].arch)
    one, other = (inspect(each.variant, limits) for each in chosen)
    if SASS in shown and (one.no_sass or other.no_sass):
        raise InvalidInput(f"sass cannot be shown: {one.no_sass or other.no_sass or MISSING}")
    variants = (one.variant, other.variant)
    study = chosen[0].study or chosen[1].study or scope.goal.study
    scope = replace(scope, goal=replace(scope.goal, study=study))
    times = known_times_of(variants, limits, scope)
    of_study = is_of_study(parse_choice(a)) or is_of_study(parse_choice(b))
    is_there = of_study and of.gpu is None
    where = f"on {limits.name}" if is_there else gpu_words(limits, of.gpu)
    difference = Difference((a, b), (one, other), times, where)
    show_result(
        out.form,
        partial(print_difference, difference, shown),
        partial(difference_data, difference, shown),
    )


def _shown(text: str) -> tuple[str, ...]:
    """Return the texts that are asked for; raises InvalidInput."""
    from explorer.report.diff import TEXTS

    if text == NONE:
        return ()
    chosen = words("show", text)
    unknown = [word for word in chosen if word not in TEXTS]
    if unknown:
        raise InvalidInput(
            f"show is {text!r}; write some of {', '.join(TEXTS)} with commas, or {NONE}"
        )
    return tuple(name for name in TEXTS if name in chosen)
