"""The problem that --cols, --rows and --dtype name."""

from explorer.dtype import DType
from explorer.problem import Problem, default_rows


def problem_of(cols: int, rows: int | None, dtype: DType) -> Problem:
    """The problem, with rows as many as make 256 MiB of traffic where they are left out."""
    return Problem(default_rows(cols, dtype) if rows is None else rows, cols, dtype)


def rows_notice(problem: Problem, rows: int | None) -> list[str]:
    """What to tell a user who left rows out."""
    if rows is not None:
        return []
    traffic = problem.bytes / 2**20
    shown = f"{traffic:.0f}" if traffic >= 10 else f"{traffic:.3g}"
    return [f"rows left out: {problem.rows}, which makes {shown} MiB of traffic"]
