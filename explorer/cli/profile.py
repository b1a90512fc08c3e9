"""What kernels are and do, not timed: `explorer profile` of one, `explorer diff` of two."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import NAMED, JsonOption, KernelOptions, argument, option, words
from explorer.cli.output import show_result
from explorer.cli.own_kernel import OwnOptions
from explorer.cli.problem import with_problem_unless
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery

if TYPE_CHECKING:
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.evaluate.nsight import NsightFigures
    from explorer.model.gpu_spec import GpuSpec
    from explorer.tuning.known_times import KnownTimes

NAMED_OR_FILE = (
    f"{NAMED.removesuffix('.').replace(', or a', ', a')}, or a FILE.cu or FILE.cu:KERNEL, emitted "
    "or of your own."
)
FileOrWhat = Annotated[str, argument("WHAT", NAMED_OR_FILE, completions.variants)]

ProfileDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "emulated; cuda:N adds Nsight Compute's figures; auto: cuda:0 if there is one.",
        complete=completions.among("auto", "cuda:0", "emulated"),
    ),
]


@with_problem_unless("a file says it")
def profile(
    context: typer.Context,
    what: FileOrWhat,
    query: ProblemQuery | None,
    of: KernelOptions,
    own: OwnOptions,
    out: JsonOption,
    device: ProfileDevice = "auto",
) -> None:
    """Count what a kernel does: traffic, conflicts, instructions, occupancy."""
    from explorer.devices.names import device_index, gpu_limits, gpu_or_emulator
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.evaluate.profile import profile as count_work
    from explorer.export.choice import chosen_variant
    from explorer.model.gpu_spec import known_gpu_for
    from explorer.report.profile import print_profile, profile_data

    index = device_index(gpu_or_emulator(device))
    program = own.program(context, what, query)
    if program is None:
        own.check_none(f"{what} is no file")
        chosen = chosen_variant(what, of.scope(query))
        program = ProgramUnderTest.of(chosen.variant)
        limits = chosen.gpu or known_gpu_for(chosen.arch)
    else:
        limits = gpu_limits(of.gpu)
    if index is not None:
        limits = gpu_limits(None)
    counted = count_work(program, limits)
    nsight = None if index is None else _nsight(program, index)
    show_result(
        out.form,
        partial(print_profile, counted, nsight),
        partial(profile_data, counted, nsight),
    )


def _nsight(program: "ProgramUnderTest", index: int) -> "NsightFigures | str":
    from explorer.evaluate.nsight import nsight_figures

    if program.has_own_text:
        return "Nsight Compute's figures are left out: they are of emitted kernels alone"
    return nsight_figures(program.problem, program.config, index)


# ------------------------------------------------------------------ explorer diff


NONE = "none"

First = Annotated[str, argument("A", NAMED_OR_FILE, completions.variants)]
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


@with_problem_unless("a file says it")
def diff(
    context: typer.Context,
    a: First,
    b: Second,
    query: ProblemQuery | None,
    of: KernelOptions,
    own: OwnOptions,
    out: JsonOption,
    show: Show = "source",
) -> None:
    """Show two kernels side by side: config, source, resources, counts, times if known."""
    from explorer.devices.names import gpu_words
    from explorer.evaluate.profile import MISSING, inspect
    from explorer.report.diff import SASS, Difference, difference_data, print_difference

    shown = _shown(show)
    programs, limits, times, is_there = _two(context, (a, b), query, of, own)
    one, other = (inspect(program, limits) for program in programs)
    if SASS in shown and (one.no_sass or other.no_sass):
        raise InvalidInput(f"sass cannot be shown: {one.no_sass or other.no_sass or MISSING}")
    where = f"on {limits.name}" if is_there else gpu_words(limits, of.gpu)
    difference = Difference((a, b), (one, other), times, where)
    show_result(
        out.form,
        partial(print_difference, difference, shown),
        partial(difference_data, difference, shown),
    )


Two = tuple["ProgramUnderTest", "ProgramUnderTest"]


def _two(
    context: typer.Context,
    named: tuple[str, str],
    query: ProblemQuery | None,
    of: KernelOptions,
    own: OwnOptions,
) -> tuple[Two, "GpuSpec", "KnownTimes | None", bool]:
    """Return two kernels, the GPU whose limits count, known times, and whether these are of it.

    No times are known of a file. Raises InvalidInput for kernels of two problems.
    """
    from explorer.devices.names import gpu_limits
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.export.choice import (
        chosen_variant,
        is_of_study,
        known_times_of,
        parse_choice,
        two_variants,
    )
    from explorer.model.gpu_spec import known_gpu_for

    files = [own.program(context, what, query) for what in named]
    scope = of.scope(query)
    if files == [None, None]:
        own.check_none("neither of the two is a file")
        chosen = two_variants(named, scope)
        limits = chosen[0].gpu or chosen[1].gpu or known_gpu_for(chosen[0].arch)
        study = chosen[0].study or chosen[1].study or scope.goal.study
        scope = replace(scope, goal=replace(scope.goal, study=study))
        times = known_times_of([each.variant for each in chosen], limits, scope)
        of_study = any(is_of_study(parse_choice(what)) for what in named)
        one, other = (ProgramUnderTest.of(each.variant) for each in chosen)
        return (one, other), limits, times, of_study and of.gpu is None
    problem = next(file for file in files if file is not None).variant.problem
    scope = replace(scope, query=ProblemQuery.of(problem))
    one, other = (
        file or ProgramUnderTest.of(chosen_variant(what, scope).variant)
        for file, what in zip(files, named, strict=True)
    )
    if one.variant.problem != other.variant.problem:
        raise InvalidInput(
            f"{named[0]} is for {one.variant.problem} and {named[1]} for {other.variant.problem}: "
            "two kernels of one problem are compared"
        )
    return (one, other), gpu_limits(of.gpu), None, False


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
