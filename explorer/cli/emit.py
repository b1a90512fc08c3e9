"""`explorer emit`: write a kernel's source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.exits import say
from explorer.cli.options import Cols, Dtype, Gpu, Json, Rows, Storage
from explorer.cli.problem import problem_of, rows_notice
from explorer.errors import ExplorerError
from explorer.problem import DType, Problem

if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.config import Config
    from explorer.outcome import Resources
    from explorer.search import ProblemFilter

STDOUT = "-"

What = Annotated[
    str, typer.Argument(metavar="WHAT", help="best, a trial's number, or a config as JSON.")
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


def emit(
    what: What,
    cols: Cols,
    rows: Rows = None,
    dtype: Dtype = DType.F32,
    output: Output = None,
    force: Force = False,
    gpu: Gpu = None,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Write the source of the best, a trial or a config."""
    from explorer.config import Config
    from explorer.emit import default_path, parse_choice, write_source
    from explorer.report.json_data import as_text, emission_data

    if json and output == STDOUT:
        raise typer.BadParameter("--json and --output - both want stdout; drop one of them")
    choice = parse_choice(what)
    if isinstance(choice, Config):
        problem = problem_of(cols, rows, dtype)
        variant, arch = _of_config(choice, problem, gpu)
        for notice in rows_notice(problem, rows):
            say(notice)
    else:
        from explorer.search import ProblemFilter

        variant, arch = _of_trial(choice, ProblemFilter(cols, dtype, rows), gpu, storage)
    resources = _resources(variant, arch)
    if output == STDOUT:
        print(variant.source, end="")
        return
    path = Path(output) if output else default_path(variant)
    written = write_source(variant, path, force=force)
    if json:
        print(as_text(emission_data(variant, path, written, arch, resources)))
    else:
        print(f"{path}: {written}")


def _of_config(config: "Config", problem: Problem, gpu: str | None) -> "tuple[Variant, str]":
    """The variant of a config that a user wrote, and the architecture it was checked for."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.codegen import emit as emit_variant
    from explorer.emit import checked_config

    limits = gpu_limits(gpu)
    return emit_variant(problem, checked_config(config, problem, limits)), limits.arch


def _of_trial(
    which: str | int, wanted: "ProblemFilter", gpu: str | None, storage: str | None
) -> "tuple[Variant, str]":
    """The variant of a trial, and the architecture that it was measured on."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.emit import variant_of
    from explorer.search import find_trial, load_study, open_storage

    opened = open_storage(storage, read_only=True)
    study = load_study(opened, wanted)
    problem = study.summary.problem
    arch = gpu_limits(gpu).arch if gpu else study.circumstances.arch
    replayed = study.circumstances if study.summary.replayed else None
    return variant_of(find_trial(opened, problem, which), problem, replayed), arch


def _resources(variant: "Variant", arch: str) -> "Resources | None":
    """Compile the source as a check, and tell what the kernel takes; no NVRTC is no error."""
    from explorer.compile import nvrtc_version
    from explorer.emit import compile_for
    from explorer.report.resources import resources_line

    try:
        version = nvrtc_version()
    except ExplorerError as error:
        say(f"not compiled as a check: {error}")
        return None
    resources = compile_for(arch, variant)
    say(f"compiles for {arch} with NVRTC {version}: {resources_line(resources)}")
    return resources
