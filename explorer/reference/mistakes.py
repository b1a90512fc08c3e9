"""Which common mistake a wrong softmax looks like, by its numbers.

Each mistake is a softmax computed otherwise, in fp32 as kernels do. If one of them explains nine of
ten rows that are wrong, it is returned; nothing is said of numbers that none of them explains.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.reference.layout import Array

Numbers = NDArray[np.float32]

MOST_ROWS = 64
"""Most wrong rows that are tried to be explained."""

SAME = {2: 2e-2, 4: 2e-3, 8: 1e-6}
"""Relative difference up to which a number is the one that a mistake gives, by its bytes."""

IDENTITIES = (-1.0, -10.0, -100.0, -1e3, -1e4, -1e5, -1e6, -1e9, -1e10, -1e20, -1e30)
"""Numbers that are taken for the identity of a maximum, beside 0."""

VECTORS = (2, 4, 8, 16)
"""Elements of a vector, of which a row's last ones may be none."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is likely to be wrong with a kernel."""

    sentence: str
    lines: tuple[str, ...] = ()
    """Regular expressions of lines that may hold it: those of the first one that any line has."""


_END = r"\s*[;:,)}]"
_EXPONENTIAL = (r"exp\w*\s*\(",)
_RUNNING_SUM = (r"\+=.*exp|exp.*\+.*exp", *_EXPONENTIAL)
_PARTIAL_SUMS = (r"\+=.*shfl|shfl.*\+", r"\]\s*\+=|\+.*\]", r"atomicAdd", r"\+=")
_TAIL = (r"\bfor\b.*(?:/\s*\w|>>\s*\d|\+\s*\w+\s*<|-\s*\w+\s*;)", r"\bfor\b")


def _begins(number: str, name: str) -> str:
    """Return the expression of lines in which a variable of such a name, or a term, is a number."""
    return rf"\b{name}(?:\[[^\]]*\])?\s*(?:=|\{{)\s*{number}{_END}|[?:]\s*{number}{_END}"


_OF_A_MAXIMUM = r"(?:\w*[mM]ax\w*|mx?\d?)"
_OF_NO_SUM = r"(?!\w*(?:sum|total|den|acc|norm)|d\b|l\b|s\b|i\b|j\b|k\b|offset)\w+"


def likely_mistake(
    problem: Problem, rows: Array, made: Array, due: Array, threads: int
) -> Mistake | None:
    """Return the mistake that `made` looks like where `due` is right, or None.

    All are (rows, cols); a block has `threads` threads. Only softmax and log_softmax are known.
    """
    if problem.op not in (Op.SOFTMAX, Op.LOG_SOFTMAX) or problem.mask is not Mask.NONE:
        return None
    with np.errstate(all="ignore"):
        return _likely(problem, rows, made, due, threads)


def _likely(problem: Problem, rows: Array, made: Array, due: Array, threads: int) -> Mistake | None:
    scale = 1.0 if problem.scale is None else problem.scale
    x = rows.astype(np.float32) * np.float32(scale)
    got, truth = made.astype(np.float32), due.astype(np.float32)
    wrong = ~_same(got, truth, SAME[made.dtype.itemsize])
    is_finite = np.isfinite(x).all(axis=1)
    told = np.flatnonzero(wrong.any(axis=1) & is_finite)[:MOST_ROWS]
    if not told.size:
        return Mistake("only rows that hold infinities or NaN are wrong", _EXPONENTIAL)
    x, got, truth, wrong = x[told], got[told], truth[told], wrong[told]
    is_log = problem.op == Op.LOG_SOFTMAX
    for mistake, tried in _mistakes(x, is_log, threads):
        if _same(tried, got, SAME[made.dtype.itemsize]).all(axis=1).mean() > 0.9:
            return mistake
    return _by_place(x, got, truth, wrong, is_log)


def _same(one: Numbers, other: Numbers, most: float) -> NDArray[np.bool_]:
    """Return where two numbers are the same, up to `most` of their magnitude and to underflow."""
    close: Any = np.isclose(one, other, rtol=most, atol=1e-30, equal_nan=True)
    return np.asarray(close, np.bool_)


def _softmax(
    x: Numbers,
    greatest: Numbers,
    is_log: bool,
    counted: NDArray[np.bool_] | None = None,
    more: float = 0.0,
) -> Numbers:
    """Return softmax in fp32 with another maximum, of `counted` terms, and `more` in the sum."""
    terms = np.exp(x - greatest)
    total = (terms if counted is None else np.where(counted, terms, 0)).sum(axis=1, keepdims=True)
    total = (total + np.float32(more)).astype(np.float32)
    result: Numbers = x - greatest - np.log(total) if is_log else terms / total
    return result


def _mistakes(x: Numbers, is_log: bool, threads: int) -> Iterator[tuple[Mistake, Numbers]]:
    """Yield mistakes, each with the numbers of a kernel that has it."""
    greatest = x.max(axis=1, keepdims=True)
    yield (
        Mistake(
            "the maximum looks as if it began at 0, or at FLT_MIN, which is above 0: its identity "
            "is -INFINITY",
            (
                _begins("(?:0?\\.?0*f?|FLT_MIN)", _OF_A_MAXIMUM) + "|FLT_MIN",
                _begins("0\\.?0*f?", _OF_NO_SUM),
            ),
        ),
        _softmax(x, np.maximum(greatest, 0), is_log),
    )
    yield (
        Mistake(
            "it looks as if no maximum were subtracted before the exponential, which overflows",
            _EXPONENTIAL,
        ),
        _softmax(x, np.zeros_like(greatest), is_log),
    )
    for number in IDENTITIES:
        yield (
            Mistake(
                f"the maximum looks as if it began at {number:g}: its identity is -INFINITY",
                (_begins(r"-\s*\d[\d.]*(?:e\+?\d+)?f?", r"\w+"),),
            ),
            _softmax(x, np.maximum(greatest, np.float32(number)), is_log),
        )
    for more, what in ((1.0, "1"), (float(threads), "1 in each thread")):
        yield (
            Mistake(
                f"the sum looks as if it began at {what}: its identity is 0",
                (_begins(r"1\.?0*f?", r"\w+"),),
            ),
            _softmax(x, greatest, is_log, more=more),
        )
    powers = np.exp2(x - greatest)
    total = powers.sum(axis=1, keepdims=True)
    yield (
        Mistake(
            "it looks like powers of 2 in place of powers of e: exp2f takes x * log2(e)",
            ("exp2|ex2",),
        ),
        x - greatest - np.log(total) if is_log else powers / total,
    )
    if is_log:
        total = np.exp(x - greatest).sum(axis=1, keepdims=True)
        yield (
            Mistake(
                "it looks like x - (maximum + log(sum)), which loses the digits of the logarithm "
                "where the maximum is large: subtract the maximum first",
                (r"log\w*\s*\(",),
            ),
            x - (greatest + np.log(total)),
        )
    if not is_log:
        yield Mistake("it looks as if nothing were divided by the sum"), np.exp(x - greatest)
    yield from _of_lost_terms(x, greatest, is_log, threads)


def _of_lost_terms(
    x: Numbers, greatest: Numbers, is_log: bool, threads: int
) -> Iterator[tuple[Mistake, Numbers]]:
    """Yield sums that leave out a row's tail, or what some threads have added up."""
    cols = np.arange(x.shape[1])
    ends = [
        (width, len(cols) // width * width)
        for width in (*VECTORS, WARP, threads)
        if 0 < len(cols) // width * width < len(cols)
    ]
    for width, end in ends:
        yield (
            Mistake(
                f"the sum looks as if it left out the last {len(cols) - end} of {len(cols)} "
                f"columns, which are no whole {width}: a tail is missing",
                _TAIL,
            ),
            _softmax(x, greatest, is_log, cols < end),
        )
    owner = cols % threads
    for count, what in (
        (1, "the first thread has"),
        (WARP, "the first warp has"),
        (threads // 2, "the first half of the threads have"),
    ):
        if 0 < count < min(threads, len(cols)):
            yield (
                Mistake(
                    f"the sum looks as if it were of what {what} added up alone: partial sums of "
                    "other threads are lost",
                    _PARTIAL_SUMS,
                ),
                _softmax(x, greatest, is_log, owner < count),
            )
    if len(cols) > threads:
        yield (
            Mistake(
                f"the sum looks as if it were of the first {threads} columns alone: each thread "
                "adds up one, and no more",
                (r"\+=.*exp", r"exp"),
            ),
            _softmax(x, greatest, is_log, cols < threads),
        )
    own = np.stack([np.where(owner == one, x, -np.inf).max(axis=1) for one in range(threads)])
    terms = np.exp(x - own[owner].T)
    total = terms.sum(axis=1, keepdims=True)
    yield (
        Mistake(
            "the threads' sums look as if they were added up without exp(own maximum - row's "
            "maximum), by which each is to be multiplied",
            _PARTIAL_SUMS,
        ),
        x - greatest - np.log(total) if is_log else np.exp(x - greatest) / total,
    )
    running = np.maximum.accumulate(x, axis=1)
    total = np.exp(x - running).sum(axis=1, keepdims=True)
    yield (
        Mistake(
            "the running sum looks as if it were not multiplied by exp(old maximum - new maximum) "
            "where the maximum grows",
            _RUNNING_SUM,
        ),
        x - greatest - np.log(total) if is_log else np.exp(x - greatest) / total,
    )


def _by_place(
    x: Numbers, got: Numbers, truth: Numbers, wrong: NDArray[np.bool_], is_log: bool
) -> Mistake | None:
    """Return what the places of wrong numbers tell, if nothing explains the numbers."""
    cols = x.shape[1]
    first = int(np.argmax(wrong.any(axis=0)))
    for width in VECTORS:
        if first == cols // width * width and first > 0:
            return Mistake(
                f"only the last {cols - first} of {cols} columns are wrong, which are no whole "
                f"{width}: it looks like a mistake of the tail",
                _TAIL,
            )
    off = got - truth if is_log else got / truth
    finite = np.isfinite(off) & (np.abs(truth) > 1e-30)
    spread = [row[keep] for row, keep in zip(off, finite, strict=True) if keep.sum() > 1]
    if spread and all(np.ptp(row) <= 2e-2 * max(np.abs(row).max(), 1e-30) for row in spread):
        by = "number is added to" if is_log else "factor is in"
        return Mistake(
            f"the same {by} every element of a row: the row's sum is wrong, its terms are right",
            _PARTIAL_SUMS,
        )
    return None
