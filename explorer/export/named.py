"""One kernel or two as programs: chosen as `emit` chooses them, or read from a file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from explorer.devices.names import gpu_limits
from explorer.devices.own_kernel import OwnLaunch, read_file
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.export.choice import (
    Scope,
    What,
    chosen_variant,
    is_of_study,
    known_times_of,
    parse_choice,
    two_variants,
)
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec, known_gpu_for
from explorer.model.query import ProblemQuery
from explorer.system.user_files import cuda_file

if TYPE_CHECKING:
    from explorer.tuning.known_times import KnownTimes


def program_of(
    what: What, scope: Scope, launch: OwnLaunch, *, reads_dtype: bool
) -> tuple[ProgramUnderTest, GpuSpec]:
    """Return the program that WHAT names, a file or a kernel, and the GPU whose limits count.

    A kernel of one's own is launched as `launch` says; see `read_file`. Raises as that and as
    `chosen_variant`.
    """
    file = _in_file(what, scope, launch, reads_dtype=reads_dtype)
    if file is not None:
        return file, gpu_limits(scope.gpu)
    launch.check_none(f"{what} is no file")
    chosen = chosen_variant(what, scope)
    return ProgramUnderTest.of(chosen.variant), chosen.gpu or known_gpu_for(chosen.arch)


def _in_file(
    what: What, scope: Scope, launch: OwnLaunch, *, reads_dtype: bool
) -> ProgramUnderTest | None:
    """Return the program in the file that WHAT names; None if it names no file."""
    if not isinstance(what, str) or cuda_file(what) is None:
        return None
    return read_file(what, launch, scope.query, reads_dtype=reads_dtype)


@dataclass(frozen=True, slots=True)
class TwoPrograms:
    """Two kernels of one problem."""

    programs: tuple[ProgramUnderTest, ProgramUnderTest]
    gpu: GpuSpec
    """The GPU whose limits count."""
    times: "KnownTimes | None" = None
    """What they took on it; None where that is not known, as of a file."""
    is_of_study: bool = False
    """Whether the GPU is that of a study, and not one that was named."""


def two_programs(
    named: tuple[What, What], scope: Scope, launches: Sequence[OwnLaunch], *, reads_dtype: bool
) -> TwoPrograms:
    """Return the programs that two WHATs name, each with what is said of its launch.

    Raises as `program_of`, and for two problems.
    """
    files = [
        _in_file(what, scope, launch, reads_dtype=reads_dtype)
        for what, launch in zip(named, launches, strict=True)
    ]
    if files == [None, None]:
        for launch in launches:
            launch.check_none("neither of the two is a file")
        return _two_chosen(named, scope)
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
    return TwoPrograms((one, other), gpu_limits(scope.gpu))


def _two_chosen(named: tuple[What, What], scope: Scope) -> TwoPrograms:
    chosen = two_variants(named, scope)
    gpu = chosen[0].gpu or chosen[1].gpu or known_gpu_for(chosen[0].arch)
    study = chosen[0].study or chosen[1].study or scope.goal.study
    searched = replace(scope, goal=replace(scope.goal, study=study))
    variants = [each.variant for each in chosen]
    times = known_times_of(variants, gpu, searched)
    of_study = scope.gpu is None and any(is_of_study(parse_choice(what)) for what in named)
    one, other = (ProgramUnderTest.of(variant) for variant in variants)
    return TwoPrograms((one, other), gpu, times, of_study)
