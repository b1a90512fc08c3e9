"""The source of the explorer's own GPU code for one element type."""

from functools import cache
from pathlib import Path

from explorer.dtype import DType


@cache
def tools_source(dtype: DType) -> str:
    """CUDA C++ of fill_input, the plain copies and check_rows for matrices of `dtype`."""
    text = Path(__file__).with_name("tools.cu").read_text()
    return f"#define DTYPE_{dtype.name}\n{text}"
