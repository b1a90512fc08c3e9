"""What kernels are and do, not timed: `explorer profile` of one, `explorer diff` of two."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import NAMED, JsonOption, KernelOptions, argument, option, words
from explorer.cli.output import is_given, show_result
from explorer.cli.own_kernel import OwnOptions
from explorer.cli.problem import with_problem_unless
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery

if TYPE_CHECKING:
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.evaluate.nsight import NsightFigures

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


ShowOne = Annotated[
    str,
    option(
        "--show TEXT,TEXT",
        "Below it the ptx or the sass (which takes softmax-explorer[sass]), beside its source.",
        complete=completions.among("ptx", "sass", "ptx,sass"),
    ),
]


@with_problem_unless("a file or --study says it")
def profile(
    context: typer.Context,
    what: FileOrWhat,
    query: ProblemQuery | None,
    of: KernelOptions,
    own: OwnOptions,
    out: JsonOption,
    device: ProfileDevice = "auto",
    show: ShowOne = "none",
) -> None:
    """Count what a kernel does: traffic, conflicts, instructions, occupancy."""
    from explorer.devices.names import device_index, gpu_limits, gpu_or_emulator
    from explorer.evaluate.profile import PTX, SASS, beside_source
    from explorer.evaluate.profile import profile as count_work
    from explorer.export.named import program_of
    from explorer.report.profile import print_profile, profile_data

    index = device_index(gpu_or_emulator(device))
    wanted = _shown(show, (PTX, SASS))
    reads_dtype = not is_given(context, "dtype")
    program, limits = program_of(what, of.scope(query), own.launch, reads_dtype=reads_dtype)
    if index is not None:
        limits = gpu_limits(None)
    texts = {text: beside_source(program, limits, text) for text in wanted}
    counted = count_work(program, limits)
    nsight = None if index is None else _nsight(program, index)
    show_result(
        out.form,
        partial(print_profile, counted, nsight, texts),
        lambda: {**profile_data(counted, nsight), **texts},
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


@with_problem_unless("a file or --study says it")
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
    from explorer.evaluate.profile import MISSING, SASS, inspect
    from explorer.export.named import two_programs
    from explorer.report.diff import TEXTS, Difference, difference_data, print_difference

    shown = _shown(show, TEXTS)
    reads_dtype = not is_given(context, "dtype")
    two = two_programs((a, b), of.scope(query), own.launches(2), reads_dtype=reads_dtype)
    one, other = (inspect(program, two.gpu) for program in two.programs)
    if SASS in shown and (one.no_sass or other.no_sass):
        raise InvalidInput(f"sass cannot be shown: {one.no_sass or other.no_sass or MISSING}")
    where = f"on {two.gpu.name}" if two.is_of_study else gpu_words(two.gpu, of.gpu)
    difference = Difference((a, b), (one, other), two.times, where)
    show_result(
        out.form,
        partial(print_difference, difference, shown),
        partial(difference_data, difference, shown),
    )


def _shown(text: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `texts` that are asked for; raises InvalidInput."""
    if text == NONE:
        return ()
    chosen = words("show", text)
    unknown = [word for word in chosen if word not in texts]
    if unknown:
        raise InvalidInput(
            f"show is {text!r}; write some of {', '.join(texts)} with commas, or {NONE}"
        )
    return tuple(name for name in texts if name in chosen)
