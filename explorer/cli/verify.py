"""`explorer verify`, which checks kernels without timing them, and `explorer time` for a file."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import (
    AccuracyLevel,
    JsonOption,
    KernelOptions,
    Timing,
    argument,
    option,
)
from explorer.cli.output import is_given, show_result
from explorer.cli.own_kernel import OwnOptions, is_file
from explorer.cli.problem import with_problem_unless
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.problem import USUAL
from explorer.model.query import ProblemQuery, needed, whole_number

if TYPE_CHECKING:
    from explorer.devices.program_under_test import ProgramUnderTest

What = Annotated[
    str | None,
    argument(
        "WHAT",
        "best, a trial's number, heuristic, a preset, a config as JSON, or a FILE.cu: emitted, or "
        "with a kernel of your own.",
        completions.variants,
    ),
]
All = Annotated[bool, option("--all", "Check configs in which every choice of the space occurs.")]
Strength = Annotated[
    int,
    option(
        "--strength 1|2",
        "With --all: every value occurs (1), or every pair of values (2).",
        whole_number("strength", 1, 2),
    ),
]
Sample = Annotated[
    int | None,
    option(
        "--sample N", "Check N legal configs drawn at random.", whole_number("sample", 1, 100_000)
    ),
]
FreshSeed = Annotated[
    int | None,
    option(
        "--seed S",
        "Seed of what is drawn: inputs, sizes, orders of threads, configs of --sample; default: a "
        "fresh one, which is printed.",
        whole_number("seed", 0),
    ),
]
Thorough = Annotated[
    bool,
    option("--thorough", "Try all sizes and rows of which a check draws some, as of edited files."),
]
VerifyDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "emulated, cuda:N, or auto: cuda:0 if there is one.",
        complete=completions.among("auto", "cuda:0", "emulated"),
    ),
]


NOT_OF_OWN = ("strength", "storage", "objectives", "batch_invariant")
"""Parameters without a say where a kernel of one's own is verified."""

NOT_OF_A_FILE = (*(n for n in USUAL if n not in ("rows", "cols")), "axis", *NOT_OF_OWN)
"""Parameters without a say where an emitted file is verified, whose text tells the problem."""


@with_problem_unless("a file or --study says it")
def verify(
    context: typer.Context,
    query: ProblemQuery | None,
    rows: int | None,
    of: KernelOptions,
    own: OwnOptions,
    out: JsonOption,
    what: What = None,
    all_: All = False,
    strength: Strength = 1,
    sample: Sample = None,
    device: VerifyDevice = "emulated",
    seed: FreshSeed = None,
    thorough: Thorough = False,
) -> None:
    """Check kernels for races, bad accesses and wrong numbers.

    Exit code 1: a kernel is wrong. Exit code 2: a kernel could not be checked to the end.
    """
    from explorer.devices.names import gpu_limits
    from explorer.evaluate.verify import Checks, space_checks
    from explorer.export.choice import named_checks
    from explorer.report.table import notices
    from explorer.report.verification import (
        VerifyProgress,
        exit_code,
        print_verdicts,
        verification_data,
    )

    _check_said_once(what, sample, all_=all_)
    if not all_ and not is_file(what) and is_given(context, "strength"):
        raise InvalidInput("--strength belongs to --all; leave it out")
    if what is None:
        own.launch.check_none("--all and --sample check emitted kernels")
        drawn = None if sample is None else (sample, seed or 0)
        checks = space_checks(needed(query).problem(), rows, of.gpu, drawn=drawn, strength=strength)
    elif is_file(what):
        program = own.program(context, what, query)
        _check_file_says_the_rest(context, program)
        executed = None if program.is_own else rows
        checks = Checks((program,), gpu_limits(of.gpu).arch, executed)
    else:
        own.launch.check_none(f"{what} is no file")
        checks = named_checks(what, rows, of.scope(query))
    checks = checks.drawn_by(seed, thorough=thorough)
    with VerifyProgress(len(checks.programs), notices()) as progress:
        verdicts = checks.verdicts(device, of.goal.accuracy, progress.told)
        found = [progress(verdict) for verdict in verdicts]
    show_result(
        out.form,
        lambda console: print_verdicts(found, console, progress.elapsed_s),
        partial(verification_data, found),
    )
    raise typer.Exit(exit_code(found))


def _check_said_once(what: str | None, sample: int | None, *, all_: bool) -> None:
    """Raise InvalidInput where nothing is to be verified, or more than one thing."""
    given = [
        *([what] if what is not None else []),
        *(["--all"] if all_ else []),
        *([f"--sample {sample}"] if sample is not None else []),
    ]
    if not given:
        raise InvalidInput(
            "what to verify is not said: give one of best, a trial's number, heuristic, a preset, "
            "a config as JSON, a FILE.cu, --all, or --sample 20"
        )
    if len(given) > 1:
        often = "twice" if len(given) == 2 else "three times"
        listed = f"{', '.join(given[:-1])} and {given[-1]}"
        raise InvalidInput(f"what to verify is said {often}: {listed}; give one")


def _check_file_says_the_rest(context: typer.Context, program: "ProgramUnderTest") -> None:
    """Raise InvalidInput for an option that would change nothing."""
    for name in NOT_OF_OWN if program.is_own else NOT_OF_A_FILE:
        if is_given(context, name) and program.is_own:
            raise InvalidInput(
                f"--{name.replace('_', '-')} says nothing of a kernel of your own; leave it out"
            )
        if is_given(context, name):
            raise InvalidInput(
                f"--{name.replace('_', '-')} says nothing of an emitted file, whose text tells "
                "what it computes; leave it out (--cols, --rows, --accuracy, --seed, --device and "
                "--gpu count)"
            )


# ------------------------------------------------------------------ explorer time


File = Annotated[
    str,
    argument(
        "FILE.cu", "A file that explorer emit wrote, edited or not, or one with your own kernel."
    ),
]
GpuDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "The GPU to time on: cuda:N, or auto, which is cuda:0.",
        complete=completions.among("auto", "cuda:0"),
    ),
]


@with_problem_unless("a file says it")
def time(
    context: typer.Context,
    file: File,
    query: ProblemQuery | None,
    rows: int | None,
    own: OwnOptions,
    out: JsonOption,
    device: GpuDevice = "auto",
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
) -> None:
    """Verify the kernel of a file, then time it.

    Exit code 1: it is wrong. Exit code 2: it could not be verified.
    """
    from explorer.evaluate.verify import time_file
    from explorer.report.verification import exit_code, print_timed_file, timed_file_data

    program = own.program(context, file, query)
    _check_file_says_the_rest(context, program)
    timed = time_file(program, device, rows, timing, accuracy)
    path = Path(file)
    show_result(
        out.form,
        partial(print_timed_file, timed, path),
        partial(timed_file_data, timed, path),
    )
    raise typer.Exit(exit_code([timed.verdict]))
