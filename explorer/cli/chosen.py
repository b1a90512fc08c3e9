"""The variant that WHAT names: best, a trial, or a config as JSON."""

from typing import TYPE_CHECKING

from explorer.cli.gpu_limits import gpu_limits
from explorer.cli.problem import problem_of
from explorer.problem import DType

if TYPE_CHECKING:
    from explorer.codegen import Variant


def chosen_variant(
    what: str, cols: int, rows: int | None, dtype: DType, gpu: str | None, storage: str | None
) -> "tuple[Variant, str]":
    """The variant, and the architecture of the GPU that it was measured on or is checked for.

    Raises InvalidInput for what is none of the three or no legal config, NotFound for a trial
    that is not there.
    """
    from explorer.codegen import emit
    from explorer.config import Config
    from explorer.emit import checked_config, parse_choice, variant_of

    choice = parse_choice(what)
    if isinstance(choice, Config):
        limits = gpu_limits(gpu)
        problem = problem_of(cols, rows, dtype)
        return emit(problem, checked_config(choice, problem, limits)), limits.arch
    from explorer.search import ProblemFilter, find_trial, load_study, open_storage

    opened = open_storage(storage, read_only=True)
    study = load_study(opened, ProblemFilter(cols, dtype, rows))
    problem = study.summary.problem
    arch = gpu_limits(gpu).arch if gpu else study.circumstances.arch
    return variant_of(find_trial(opened, problem, choice), problem), arch
