"""The source of the explorer's own GPU code for a problem's element types and its limit."""

from functools import cache
from pathlib import Path

from explorer.dtype import DType
from explorer.problem import Problem


def is_plain_copy(problem: Problem) -> bool:
    """Whether the limit is a copy: one matrix is read, and as many bytes are written."""
    one_matrix = not problem.op.is_backward and not problem.mask_rows
    return one_matrix and problem.read_bytes == problem.written_bytes


def tools_source(problem: Problem) -> str:
    """CUDA C++ that fills inputs, moves what the limit moves, and checks an output."""
    limit = "copies" if is_plain_copy(problem) else "streams"
    return _source(problem.dtype, problem.output_dtype, limit)


@cache
def _source(dtype: DType, out_dtype: DType, limit: str) -> str:
    folder = Path(__file__).parent
    parts = ("elements", "fill", "hints", limit, "check")
    texts = [(folder / f"{part}.cu").read_text() for part in parts]
    return "\n".join([f"#define IN {dtype.name}", f"#define OUT {out_dtype.name}", *texts])
