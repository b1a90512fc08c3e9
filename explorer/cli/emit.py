"""`explorer emit`: write a kernel's source."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from explorer.cli.help import UsageError
from explorer.cli.options import Json, KernelOptions, What, option
from explorer.cli.output import say
from explorer.cli.problem import with_problem_unless
from explorer.model.errors import InvalidInput, WrongKernel
from explorer.model.query import ProblemQuery
from explorer.system.plain_data import shown

if TYPE_CHECKING:
    from explorer.model.gpu_spec import GpuSpec

STDOUT = "-"

FRAMEWORKS = ("torch", "cupy", "jax", "cpp")

Output = Annotated[
    str | None,
    option(
        "--output FILE", "File to write, - for stdout; default: a file of its own in generated/."
    ),
]
Force = Annotated[bool, option("--force", "Replace a file that holds other code.")]
NoVerify = Annotated[
    bool, option("--no-verify", "Write the source without checking that it is right.")
]
Overlapped = Annotated[
    bool,
    option(
        "--overlapped",
        "Let the launch begin before the one before it on its stream has ended, and wait for "
        "that in its code: narrows the gap between small kernels, on sm_90 and later.",
    ),
]
Main = Annotated[
    bool,
    option(
        "--main", "Add a main() to the source, which checks the kernel on an example and times it."
    ),
]
For = Annotated[
    str | None,
    option(
        "--for FRAMEWORK",
        "Write beside the file a program that runs it on an example: torch, cupy, jax or cpp.",
        choices=FRAMEWORKS,
    ),
]


@with_problem_unless("--study says it")
def emit(
    what: What,
    query: ProblemQuery | None,
    of: KernelOptions,
    output: Output = None,
    force: Force = False,
    for_: For = None,
    no_verify: NoVerify = False,
    overlapped: Overlapped = False,
    main: Main = False,
    json: Json = False,
) -> None:
    """Write the source of the best, a trial, the heuristic, a preset or a config."""
    from explorer.export.emission import default_path, emitted
    from explorer.export.programs import program_for

    _check_output(output, json=json, for_=for_)
    named = None if output in (None, STDOUT) else Path(output or "")
    try:
        made = emitted(
            what,
            of.scope(query),
            overlapped=overlapped,
            main=main,
            verify=not no_verify,
            path=default_path if output is None else lambda _: named,
            program=None if for_ is None else partial(program_for, for_),
            force=force,
        )
    except WrongKernel as wrong:
        from explorer.report.table import notices
        from explorer.report.verification import print_findings

        print_findings(wrong.verdict, notices())
        raise
    _say_assumed_gpu(what, of.gpu, made.gpu)
    if made.path is None:
        print(made.variant.source, end="")
    elif json:
        from explorer.report.text import as_json
        from explorer.report.verification import emission_data

        found = (made.arch, made.resources, made.verdict, made.beside)
        print(as_json(emission_data(made.variant, made.path, str(made.written), *found)))
    else:
        for path, written in filter(None, ((made.path, made.written), made.beside)):
            print(f"{path}: {written}")


def _say_assumed_gpu(what: str, gpu: str | None, assumed: "GpuSpec | None") -> None:
    from explorer.devices.names import assumes_gpu
    from explorer.export.choice import HEURISTIC

    if what == HEURISTIC and assumes_gpu(gpu) and assumed is not None:
        say(f"no GPU here: the kernel is chosen for {assumed.name}; --gpu names another")


def _check_output(output: str | None, *, json: bool, for_: str | None) -> None:
    """Raise a usage error or InvalidInput where the source cannot be written there."""
    if output == STDOUT:
        if json:
            raise UsageError("--json and --output - both want stdout; drop one of them")
        if for_ is not None:
            raise UsageError("--for writes a program beside a file; name one with --output")
    elif output == "":
        raise InvalidInput("output is '', which names nothing; name a FILE.cu")
    elif output is not None and not output.endswith(".cu"):  # explorer verify would not take it
        raise InvalidInput(f"output is {shown(output)}; name a FILE.cu")
