"""Softmax kernels in Triton: persistent programs over many rows, and one program a row.

And the gradient, the log-sum-exp and the log-probabilities by one program a row.
"""

from types import FunctionType
from typing import Any

import triton
import triton.language as tl


@triton.jit
def _row(x, log: tl.constexpr):
    """Return softmax or its logarithm of one row, in fp32."""
    x = x.to(tl.float32)
    shifted = x - tl.max(x, axis=0)
    powers = tl.exp(shifted)
    total = tl.sum(powers, axis=0)
    return shifted - tl.log(total) if log else powers / total


@triton.jit
def persistent(
    output,
    input,
    rows,
    cols,
    log: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
):
    """Stride over the rows with the loads of `stages` rows in flight."""
    columns = tl.arange(0, block)
    inside = columns < cols
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        start = row.to(tl.int64) * cols
        x = tl.load(input + start + columns, mask=inside, other=-float("inf"))
        y = _row(x, log)
        tl.store(output + start + columns, y.to(output.dtype.element_ty), mask=inside)


@triton.jit
def one_row(output, input, cols: tl.constexpr, log: tl.constexpr, block: tl.constexpr):
    """Compute one row of a length that is a constant: a seventh faster at 4097 columns."""
    columns = tl.arange(0, block)
    inside = columns < cols
    start = tl.program_id(0).to(tl.int64) * cols
    x = tl.load(input + start + columns, mask=inside, other=-float("inf"))
    y = _row(x, log)
    tl.store(output + start + columns, y.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_of_row(y, dy, log: tl.constexpr):
    """Return the gradient of a row's input, in fp32, from the forward's output and its gradient."""
    y = y.to(tl.float32)
    dy = dy.to(tl.float32)
    return dy - tl.exp(y) * tl.sum(dy, axis=0) if log else y * (dy - tl.sum(y * dy, axis=0))


@triton.jit
def one_gradient(output, input, grad, cols: tl.constexpr, log: tl.constexpr, block: tl.constexpr):
    """Compute one row's gradient, as `one_row` does."""
    columns = tl.arange(0, block)
    inside = columns < cols
    start = tl.program_id(0).to(tl.int64) * cols
    y = tl.load(input + start + columns, mask=inside, other=0.0)
    dy = tl.load(grad + start + columns, mask=inside, other=0.0)
    dx = _gradient_of_row(y, dy, log)
    tl.store(output + start + columns, dx.to(output.dtype.element_ty), mask=inside)


LARGEST = tl.constexpr(3.4028234663852886e38)
"""The largest number of fp32: a maximum is held between its negative and it, so that a row of -inf
alone has the result -inf, and one with +inf has +inf."""


@triton.jit
def one_log_sum(output, input, cols: tl.constexpr, block: tl.constexpr):
    """Compute one row's log-sum-exp, one block after another."""
    row = tl.program_id(0).to(tl.int64)
    input += row * cols
    columns = tl.arange(0, block)
    maximum = -LARGEST
    total = 0.0
    for start in range(0, cols, block):
        x = tl.load(input + start + columns, mask=start + columns < cols, other=-float("inf"))
        x = x.to(tl.float32)
        larger = tl.minimum(tl.maximum(maximum, tl.max(x, axis=0)), LARGEST)
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(x - larger), axis=0)
        maximum = larger
    result = maximum + tl.log(total)
    tl.store(output + row, result.to(output.dtype.element_ty))


@triton.jit
def _store_if_asked(result, row, value):
    """Store one number of a row; a result that is not asked for is None."""
    if result is not None:
        tl.store(result + row, value)


@triton.jit
def one_log_prob(
    output,
    input,
    ids,
    cols: tl.constexpr,
    block: tl.constexpr,
    ids_per_row: tl.constexpr,
    ids_block: tl.constexpr,
    lse=None,
    entropy=None,
    rank=None,
    argmax=None,
):
    """Compute one row's log-probabilities, and what is asked for beside them."""
    row = tl.program_id(0).to(tl.int64)
    input += row * cols
    places = tl.arange(0, ids_block)
    wanted = tl.load(ids + row * ids_per_row + places, mask=places < ids_per_row, other=0)
    is_column = (wanted >= 0) & (wanted < cols)
    chosen = tl.load(input + wanted, mask=is_column, other=float("nan")).to(tl.float32)
    first = tl.sum(tl.where(places == 0, chosen, 0.0), axis=0)
    columns = tl.arange(0, block)
    maximum = -LARGEST
    total = 0.0
    weighted = 0.0
    above = 0
    greatest = -float("inf")
    place = 0
    for start in range(0, cols, block):
        x = tl.load(input + start + columns, mask=start + columns < cols, other=-float("inf"))
        x = x.to(tl.float32)
        larger = tl.minimum(tl.maximum(maximum, tl.max(x, axis=0)), LARGEST)
        factor = tl.exp(maximum - larger)
        powers = tl.exp(x - larger)
        if entropy is not None:
            weighted = factor * (weighted + (maximum - larger) * total)
            weighted += tl.sum(tl.where(powers == 0.0, 0.0, powers * (x - larger)), axis=0)
        if rank is not None:
            above += tl.sum((x > first).to(tl.int32), axis=0)
        if argmax is not None:
            most, at = tl.max(x, axis=0, return_indices=True)
            place = tl.where(most > greatest, start + at, place)
            greatest = tl.maximum(most, greatest)
        total = total * factor + tl.sum(powers, axis=0)
        maximum = larger
    log_sum = tl.log(total)
    result = (chosen - maximum - log_sum).to(output.dtype.element_ty)
    tl.store(output + row * ids_per_row + places, result, mask=places < ids_per_row)
    _store_if_asked(lse, row, maximum + log_sum)
    _store_if_asked(entropy, row, log_sum - weighted / total)
    _store_if_asked(rank, row, above)
    _store_if_asked(argmax, row, place)


def of_any_length(kernel: Any) -> Any:
    """Return a kernel that takes the length of a row as an argument of the launch.

    For 16-bit rows of 262144 columns and more, `one_row` takes up to twice as long on an H200. A
    kernel's annotations say what it is compiled for.
    """
    own = kernel.fn
    copied = FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__)
    copied.__annotations__ = {n: a for n, a in own.__annotations__.items() if n != "cols"}
    return triton.jit(copied)
