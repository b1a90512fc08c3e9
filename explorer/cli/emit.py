"""`explorer emit`: write a kernel's source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from explorer.cli.help import UsageError
from explorer.cli.options import Json, KernelOptions, What, option
from explorer.cli.output import say
from explorer.cli.problem import with_problem
from explorer.model.accuracy import Accuracy
from explorer.model.asked import AskedProblem
from explorer.model.errors import InvalidInput, WrongKernel
from explorer.system.plain_data import shown
from explorer.system.user_files import check_writable

if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.evaluate.emulation import Verdict
    from explorer.export.choice import Chosen
    from explorer.model.outcome import Resources
    from explorer.wrappers import Program

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


@with_problem
def emit(
    what: What,
    asked: AskedProblem | None,
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
    from explorer.export.choice import chosen_variant, overlapping, with_main
    from explorer.export.emission import default_path, write_beside, write_source

    _check_output(output, json=json, for_=for_)
    chosen = chosen_variant(what, of.scope(asked))
    _say_assumed_gpu(what, of.gpu, chosen)
    arch = chosen.arch
    variant = overlapping(chosen.variant, arch) if overlapped else chosen.variant
    variant = with_main(variant) if main else variant
    path = default_path(variant) if output is None else Path(output)
    if output != STDOUT:
        check_writable(path)
    program = None if for_ is None else _program(for_, variant, path, force=force)
    resources, verdict = _checked(variant, arch, of.goal.accuracy, verify=not no_verify)
    if output == STDOUT:
        print(variant.source, end="")
        return
    written = write_source(variant, path, force=force)
    beside = None
    if program is not None:
        beside = (program.path, write_beside(program.path, program.text, force=force))
    if json:
        from explorer.report.text import as_json
        from explorer.report.verification import emission_data

        print(as_json(emission_data(variant, path, written, arch, resources, verdict, beside)))
        return
    print(f"{path}: {written}")
    if beside is not None:
        print(f"{beside[0]}: {beside[1]}")


def _say_assumed_gpu(what: str, gpu: str | None, chosen: "Chosen") -> None:
    from explorer.devices.names import assumes_gpu
    from explorer.export.choice import HEURISTIC

    if what == HEURISTIC and assumes_gpu(gpu) and chosen.gpu is not None:
        say(f"no GPU here: the kernel is chosen for {chosen.gpu.name}; --gpu names another")


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


def _program(framework: str, variant: "Variant", path: Path, *, force: bool) -> "Program":
    """Return the program that runs the variant; raises InvalidInput where it cannot be written."""
    from explorer.export.emission import check_beside
    from explorer.wrappers import program_for

    program = program_for(framework, variant, path)
    check_beside(program.path, program.text, force=force)
    return program


def _checked(
    variant: "Variant", arch: str, accuracy: Accuracy, *, verify: bool
) -> "tuple[Resources | None, Verdict | None]":
    """Compile and verify the kernel; raises WrongKernel, having printed what is wrong."""
    from explorer.export.emission import checked
    from explorer.report.table import notices
    from explorer.report.verification import print_findings

    try:
        return checked(variant, arch, accuracy, say, verify=verify)
    except WrongKernel as wrong:
        print_findings(wrong.verdict, notices())
        raise
