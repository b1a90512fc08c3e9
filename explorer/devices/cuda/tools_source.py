"""The source of the explorer's own GPU code for a problem's element types and its limit."""

from functools import cache
from pathlib import Path

from explorer.problem import Problem


def is_plain_copy(problem: Problem) -> bool:
    """Whether the limit is a copy: one matrix is read, and as many bytes are written."""
    one_matrix = not problem.op.is_backward and not problem.mask_rows
    return one_matrix and problem.read_bytes == problem.written_bytes


def tools_source(problem: Problem) -> str:
    """CUDA C++ that fills inputs, moves what the limit moves, and checks an output."""
    return f"{check_source(problem)}\n{limit_source(problem)}"


def check_source(problem: Problem) -> str:
    """The part that fills inputs and checks an output."""
    types = [f"#define IN {problem.dtype.name}", f"#define OUT {problem.output_dtype.name}"]
    return "\n".join([*types, *(_text(part) for part in ("elements", "fill", "check"))])


def limit_source(problem: Problem) -> str:
    """The part that moves bytes."""
    return _text("hints") + _text("copies" if is_plain_copy(problem) else "streams")


@cache
def _text(part: str) -> str:
    return Path(__file__).with_name(f"{part}.cu").read_text()
