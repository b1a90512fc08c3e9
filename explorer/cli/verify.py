"""`explorer verify`: check variants, or an emitted file, without timing them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import Dtype, Gpu, Json, Seed, Storage
from explorer.cli.values import whole_number
from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.problem import MAX_COLS, MAX_ROWS, Problem

if TYPE_CHECKING:
    from explorer.evaluate.program_under_test import ProgramUnderTest

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[WHAT]",
        help="best, a trial's number, a config as JSON, or an emitted FILE.cu.",
        show_default=False,
    ),
]
ColsOrNone = Annotated[
    int | None,
    typer.Option(
        "--cols",
        metavar="C",
        parser=whole_number("cols", 1, MAX_COLS),
        help="Columns of the matrix; left out for a FILE.cu: those it was emitted for.",
        show_default=False,
    ),
]
CheckedRows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="R",
        parser=whole_number("rows", 1, MAX_ROWS),
        help="Rows to check on; left out: more than one block and a part of one.",
        show_default=False,
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Check configs in which every choice of the space occurs.")
]
Strength = Annotated[
    int,
    typer.Option(
        "--strength",
        metavar="1|2",
        parser=whole_number("strength", 1, 2),
        help="With --all: every value occurs (1), or every pair of values (2).",
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="N",
        parser=whole_number("sample", 1, 100_000),
        help="Check N legal configs drawn at random.",
        show_default=False,
    ),
]
VerifyDevice = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="emulated, cuda:N, or auto: cuda:0 if there is one."
    ),
]


def verify(
    what: What = None,
    cols: ColsOrNone = None,
    rows: CheckedRows = None,
    dtype: Dtype = DType.F32,
    all_: All = False,
    strength: Strength = 1,
    sample: Sample = None,
    device: VerifyDevice = "emulated",
    gpu: Gpu = None,
    seed: Seed = 0,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Check kernels for races, bounds and numbers. Exit code 1 if one is wrong."""
    from explorer.evaluate.verify_on import verify_on
    from explorer.report.console import notices, results
    from explorer.report.json_data import as_text
    from explorer.report.verification_data import verification_data
    from explorer.report.verification_report import VerifyProgress, exit_code, print_verdicts

    if (what is not None) + all_ + (sample is not None) != 1:
        raise InvalidInput(
            "what to verify is not said: give one of best, a trial's number, a config as JSON, "
            "an emitted FILE.cu, --all, or --sample 20"
        )
    wanted = _Wanted(cols, rows, dtype, gpu, storage)
    if what is None:
        programs, arch = _of_space(wanted, None if sample is None else (sample, seed), strength)
    else:
        programs, arch = _named(what, wanted)
    with VerifyProgress(len(programs), notices()) as progress:
        found = [progress(verdict) for verdict in verify_on(device, programs, arch, rows)]
    if json:
        print(as_text(verification_data(found)))
    else:
        print_verdicts(found, results(), progress.elapsed_s)
    raise typer.Exit(exit_code(found))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options that say which kernel is meant."""

    cols: int | None
    rows: int | None
    dtype: DType
    gpu: str | None
    storage: str | None

    @property
    def needed_cols(self) -> int:
        if self.cols is None:
            raise InvalidInput("cols is not said: give --cols 4096")
        return self.cols


def _named(what: str, wanted: _Wanted) -> "tuple[list[ProgramUnderTest], str]":
    from explorer.cli.chosen import chosen_variant
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.evaluate.emitted_file import read_emitted
    from explorer.evaluate.program_under_test import ProgramUnderTest

    if what.endswith(".cu"):
        program = read_emitted(Path(what)).at_cols(wanted.cols)
        return [program], gpu_limits(wanted.gpu).arch
    cols, storage = wanted.needed_cols, wanted.storage
    chosen = chosen_variant(what, cols, None, wanted.dtype, wanted.gpu, storage)
    return [ProgramUnderTest.of(chosen.variant)], chosen.arch


def _of_space(
    wanted: _Wanted, drawn: tuple[int, int] | None, strength: int
) -> "tuple[list[ProgramUnderTest], str]":
    """The covering array of the space, or `drawn` (number, seed) of its configs."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.evaluate.program_under_test import ProgramUnderTest
    from explorer.space import Space
    from explorer.space.covering import covering_array, sampled

    limits = gpu_limits(wanted.gpu)
    problem = Problem(wanted.rows or 1, wanted.needed_cols, wanted.dtype)
    space = Space(problem, limits)
    configs = sampled(space, *drawn) if drawn else covering_array(space, strength)
    return [ProgramUnderTest.of_config(problem, config) for config in configs], limits.arch
