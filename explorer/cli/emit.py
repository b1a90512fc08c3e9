"""`explorer emit`: write a kernel's source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.accuracy import Accuracy
from explorer.asked import AskedProblem
from explorer.cli.options import AccuracyOrNone, BatchInvariant, Gpu, Json, Minimised, Storage
from explorer.cli.output import say
from explorer.cli.problem import needed, with_problem
from explorer.errors import WrongKernel
from explorer.tuning.objective import Goal, Objectives
from explorer.user_files import check_writable

if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.evaluate.emulation import Verdict
    from explorer.outcome import Resources

STDOUT = "-"

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="best, a trial's number, heuristic, a preset, or a config as JSON.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="File to write, - for stdout; left out: a file of its own in generated/.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that holds other code.")]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Write the source without checking that it is right.")
]


@with_problem
def emit(
    what: What,
    asked: AskedProblem | None,
    output: Output = None,
    force: Force = False,
    no_verify: NoVerify = False,
    batch_invariant: BatchInvariant = False,
    gpu: Gpu = None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Write the source of the best, a trial, the heuristic, a preset or a config."""
    from explorer.cli.problem import chosen_variant
    from explorer.export import REMEDY, default_path, write_source
    from explorer.report.json_data import as_text, emission_data

    if json and output == STDOUT:
        raise typer.BadParameter("--json and --output - both want stdout; drop one of them")
    goal = Goal.of(objectives, accuracy)
    chosen = chosen_variant(
        what, needed(asked), gpu, storage, goal, batch_invariant=batch_invariant
    )
    variant, arch = chosen.variant, chosen.arch
    path = default_path(variant) if output is None else Path(output)
    if output != STDOUT:
        check_writable(path, REMEDY)
    resources = _resources(variant, arch)
    unchecked = no_verify or resources is None
    verdict = None if unchecked else _verified(variant, arch, goal.accuracy)
    if output == STDOUT:
        print(variant.source, end="")
        return
    written = write_source(variant, path, force=force)
    if json:
        print(as_text(emission_data(variant, path, written, arch, resources, verdict)))
    else:
        print(f"{path}: {written}")


def _resources(variant: "Variant", arch: str) -> "Resources | None":
    """Compile the source as a check, and tell what the kernel takes; no NVRTC is no error."""
    from explorer.api import compiled

    return compiled(variant, arch, say)


def _verified(variant: "Variant", arch: str, accuracy: Accuracy) -> "Verdict":
    """Check the kernel on the emulator; raises WrongKernel, having said what is wrong."""
    from explorer.api import verified
    from explorer.report.table import notices
    from explorer.report.verification import print_findings

    try:
        return verified(variant, arch, accuracy, say)
    except WrongKernel as wrong:
        print_findings(wrong.verdict, notices())
        raise
