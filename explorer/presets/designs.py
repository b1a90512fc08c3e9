"""What published kernels have in common, as configs to change."""

from typing import Any

from explorer.config import Config
from explorer.dtype import DType
from explorer.presets.block_size import WARP
from explorer.problem import Problem
from explorer.space.design_rules import is_plain

VECTOR_BYTES = 16
"""Of a float4, or of eight half-precision numbers."""

FIRST_WARP = "shuffle-first-warp"
"""Warps reduce by shuffles, then the first warp folds what they found, if there are several."""


def scalar(problem: Problem, threads: int, threads_per_row: int, **changes: Any) -> Config:
    """Three passes over the row, element by element; nothing is kept; expf, IEEE division."""
    plain: dict[str, Any] = {
        "threads": threads,
        "threads_per_row": threads_per_row,
        "vector_bytes": problem.dtype.itemsize,
        "cache": "none",
        "cache_holds": "input",
        "exp": "expf",
        # A log-softmax divides by nothing: the space has one of the two for it.
        "normalise": "reciprocal" if problem.op.is_log else "divide",
        "static_cols": False,
    }
    if changes.get("reduction") == FIRST_WARP and threads_per_row <= WARP:
        changes = {**changes, "reduction": "shuffle"}
    return Config(**{**plain, **changes})


def stored(problem: Problem, threads: int, threads_per_row: int, **changes: Any) -> Config:
    """As `scalar`, but exponentials wait in the output to be divided: 3 reads and 2 writes."""
    waiting = {"cache": "output", "cache_holds": "exp", **changes}
    return scalar(problem, threads, threads_per_row, **waiting)


def vectors(problem: Problem, threads: int, **changes: Any) -> Config:
    """As `scalar`, a block a row, by accesses of 16 bytes and by __expf."""
    wide = {"vector_bytes": VECTOR_BYTES, "exp": "__expf", **changes}
    return scalar(problem, threads, threads, **wide)


def holds(problem: Problem) -> str:
    """What is kept between passes: a log-softmax needs the inputs again."""
    return "input" if problem.op.is_log else "exp"


def row_vectors(problem: Problem, vector_bytes: int = VECTOR_BYTES) -> int:
    """Vectors that cover a row."""
    return -(-problem.row_bytes // vector_bytes)


def packed_bytes(problem: Problem, most: int) -> int:
    """Bytes of the widest pack of at most `most` elements that divides a row; 16 at most."""
    pack = next(n for n in (8, 4, 2, 1) if n <= most and problem.cols % n == 0)
    return min(VECTOR_BYTES, pack * problem.dtype.itemsize)


def rows_at_once(problem: Problem, rows: int) -> dict[str, int]:
    """Rows that threads work on together: several only of a plain softmax."""
    return {"rows_per_thread": rows if is_plain(problem) else 1}


def careful_sum(problem: Problem) -> dict[str, str]:
    """For a thread that sums a whole row: in f32, a plain sum of it is not accurate enough."""
    is_careful = problem.dtype is DType.F32 and is_plain(problem)
    return {"sum": "compensated" if is_careful else "plain"}
