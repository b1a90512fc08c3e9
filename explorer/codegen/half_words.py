"""16-bit elements, of which a register holds two: which kernels treat them so."""

from explorer.config import Config
from explorer.op import Mask
from explorer.problem import Problem
from explorer.work_split import WorkSplit


def keeps_packed(problem: Problem, config: Config) -> bool:
    """Whether registers keep elements as they came, to be converted in each pass."""
    kept = config.cache == "registers" and config.cache_holds == "input"
    plain = config.staging == "direct" and config.sum == "plain" and config.rows_per_thread == 1
    one_matrix = not problem.op.is_backward and problem.mask is not Mask.ADDITIVE
    return _has_pairs(problem, config) and kept and plain and one_matrix


def borrows_ends(problem: Problem, config: Config) -> bool:
    """Whether a row's first and last vector are loaded with what they hold of its neighbours.

    Elements that are loaded one by one must be packed, for which a warp would wait before its next
    load. Only a dense matrix that is not written in place has neighbours to load.
    """
    split = WorkSplit(problem, config)
    if not _has_pairs(problem, config) or split.across_rows or split.aligned:
        return False
    dense = problem.is_dense and not problem.in_place and problem.mask is Mask.NONE
    in_registers = config.cache == "registers" and config.rows_per_thread == 1
    once = config.staging == "direct" and config.persistent == 0 and not problem.op.is_backward
    return dense and in_registers and once and config.static_cols and problem.cols >= split.width


def _has_pairs(problem: Problem, config: Config) -> bool:
    return problem.dtype.itemsize == 2 and config.vector_bytes > 2
