"""Which common mistake a wrong softmax looks like, by its numbers.

Each mistake is a softmax computed otherwise, in fp32 as kernels do. If one of them explains the
rows that are wrong, and nearly all that are right, it is returned; nothing is said of numbers that
none of them explains.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem
from explorer.ops import Extent, Operator
from explorer.reference.layout import Array

Numbers = NDArray[np.float32]

MOST_ROWS = 128
"""Most wrong rows, and right ones, that are tried to be explained."""

EXPLAINED = (0.9, 0.98)
"""Shares of wrong rows and of right ones that a mistake has to explain."""

SAME = {2: 2e-2, 4: 2e-3, 8: 1e-6}
"""Relative difference up to which a number is the one that a mistake gives, by its bytes."""

IDENTITIES = (-3.4e38, -3e38, *(-(10.0**n) for n in (38, 37, 30, 20, 10, 9, 6, 5, 4, 3, 2, 1, 0)))
"""Numbers that are taken for the identity of a maximum, beside 0: the first that explains it."""

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
_PARTIAL_SUMS = (
    r"\+=.*shfl|shfl.*\+",
    r"\]\s*\+=|\+=\s*\w+\[|\]\s*=\s*\w+\[[^\]]*\]\s*[;+]|sum\w*\s*=\s*\w+\[|atomicAdd",
    r"\+=.*exp",
)
_SUMS = (r"exp2f?\s*\((?!.*(?:1\.44|[lL][oO][gG]))", *_PARTIAL_SUMS)
_DIVISIONS = (r"/\s*\(?\s*\w*.*\+\s*[\d.]+e?-?\d*f?", r"/")
_MAXIMA = (r"\b(?:fmaxf?|max)\(",)
_MAXIMA_OF_LANES = (r"(?:max.*shfl|shfl.*max)", *_MAXIMA)
_NOT_REDUCED = (
    "each thread looks as if it used a {} of its own columns: the threads' are not reduced"
)
_ONE_LANE = (
    "the {} looks as if only the first lane had it, as after __shfl_down_sync: pass it on to the "
    "others, or reduce by __shfl_xor_sync"
)
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
    if not _is_known(problem.operator) or problem.mask is not Mask.NONE:
        return None
    with np.errstate(all="ignore"):
        return _likely(problem, rows, made, due, threads)


def _is_known(operator: Operator) -> bool:
    """Return whether an operator normalises the rows of its only matrix."""
    only_input = list(operator.operands) == ["input"]
    return only_input and operator.extent is Extent.MATRIX and operator.reduces


def _likely(problem: Problem, rows: Array, made: Array, due: Array, threads: int) -> Mistake | None:
    scale = 1.0 if problem.scale is None else problem.scale
    x = rows.astype(np.float32) * np.float32(scale)
    got, truth = made.astype(np.float32), due.astype(np.float32)
    least = max(1e-30, problem.output_dtype.smallest_normal * 2**-10)
    same = partial(_same, most=SAME[made.dtype.itemsize], least=least)
    wrong = ~same(got, truth)
    is_finite = np.isfinite(x).all(axis=1)
    is_wrong = wrong.any(axis=1)
    told = _some(is_wrong & is_finite)
    if not told.size and is_wrong.any():
        return Mistake("only rows that hold infinities or NaN are wrong", _EXPONENTIAL)
    if not told.size:
        some = _some(is_finite)
        return _slightly_off(x[some], got[some], truth[some], problem.operator.is_log)
    is_log = problem.operator.is_log
    right = _some(~is_wrong & is_finite)
    rows_of = _Rows(x[told], is_log, threads), _Rows(x[right], is_log, threads)
    wrong_ones, right_ones = (rows.mistakes() for rows in rows_of)
    for (mistake, tried), (_, kept) in zip(wrong_ones, right_ones, strict=True):
        shares = (_share(tried, got[told], same), _share(kept, got[right], same))
        if shares[0] >= EXPLAINED[0] and shares[1] >= EXPLAINED[1]:
            return mistake
    x, got, truth, wrong = x[told], got[told], truth[told], wrong[told]
    return _by_place(x, got, truth, wrong, is_log)


def _some(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the numbers of some rows of those that are chosen, from the first to the last."""
    numbers = np.flatnonzero(chosen)
    return numbers[:: max(1, -(-len(numbers) // MOST_ROWS))]


def _share(tried: Numbers, got: Numbers, same: Callable[..., NDArray[np.bool_]]) -> float:
    """Return the share of rows that are the same; 1 if there are none."""
    return float(same(tried, got).all(axis=1).mean()) if len(got) else 1.0


def _same(one: Numbers, other: Numbers, most: float, least: float) -> NDArray[np.bool_]:
    """Return where two numbers are the same, up to `most` of their magnitude and to `least`."""
    close: Any = np.isclose(one, other, rtol=most, atol=least, equal_nan=True)
    return np.asarray(close, np.bool_)


Tried = Iterator[tuple[Mistake, Numbers]]
"""Mistakes, each with the numbers of a kernel that has it."""


def _down(values: Numbers, joined: np.ufunc) -> Numbers:
    """Return what lanes have after a reduction by shuffles down, of which the first lane has all.

    A lane without another one so far above it gets its own value.
    """
    rows, threads = values.shape
    width = gcd(threads, WARP)
    lanes = values.reshape(rows, threads // width, width)
    step = lanes.shape[2] // 2
    while step:
        above = np.concatenate([lanes[:, :, step:], lanes[:, :, -step:]], axis=2)
        lanes, step = joined(lanes, above), step // 2
    return np.asarray(lanes.reshape(rows, threads), np.float32)


def _halved(values: Numbers, joined: np.ufunc) -> Numbers:
    """Return what the first thread has after a tree that halves the number of threads."""
    half = values.shape[1] // 2
    while half:
        values, half = joined(values[:, :half], values[:, half : 2 * half]), half // 2
    return np.asarray(values[:, :1], np.float32)


@dataclass(frozen=True)
class _Rows:
    """Rows of which softmax, or its logarithm, is computed with a mistake, in fp32."""

    x: Numbers
    is_log: bool
    threads: int

    @cached_property
    def greatest(self) -> Numbers:
        """The maximum of each row."""
        return np.asarray(self.x.max(axis=1, keepdims=True), np.float32)

    def result(self, terms: Numbers, total: Numbers, greatest: Numbers | None = None) -> Numbers:
        """Return the result from exponentials and their sum."""
        shifted = self.x - (self.greatest if greatest is None else greatest)
        return shifted - np.log(total) if self.is_log else terms / total

    def softmax(
        self,
        greatest: Numbers,
        counted: NDArray[np.bool_] | None = None,
        more: float = 0.0,
    ) -> Numbers:
        """Return softmax with another maximum, of `counted` terms, and `more` in the sum."""
        terms = np.exp(self.x - greatest)
        summed = terms if counted is None else np.where(counted, terms, np.float32(0))
        return self.result(terms, summed.sum(axis=1, keepdims=True) + np.float32(more), greatest)

    def mistakes(self) -> Tried:
        """Yield the known mistakes, the more common ones first."""
        yield from self.of_identities()
        yield from self.of_terms()
        yield from self.of_tails()
        yield from self.of_threads()
        yield from self.of_reductions()
        yield from self.of_rescaling()

    def of_identities(self) -> Tried:
        """Yield maxima and sums that begin at a wrong number."""
        at_zero = Mistake(
            "the maximum looks as if it began at 0, or at FLT_MIN, which is above 0: its identity "
            "is -INFINITY",
            (
                _begins(r"(?:0?\.?0*f?|FLT_MIN)", _OF_A_MAXIMUM) + "|FLT_MIN",
                _begins(r"0\.?0*f?", _OF_NO_SUM),
            ),
        )
        yield at_zero, self.softmax(np.maximum(self.greatest, np.float32(0)))
        of_bits = Mistake(
            "the maximum of negative numbers looks like the least of them: the bits of negative "
            "floats, compared as integers, are in the other order",
            (r"atomicMax|__float_as_u?int",),
        )
        negative = (self.x < 0).all(axis=1, keepdims=True)
        for other in (np.float32(-np.inf), self.x.min(axis=1, keepdims=True)):
            yield of_bits, self.softmax(np.where(negative, other, self.greatest))
        for number in IDENTITIES:
            below = Mistake(
                f"the maximum looks as if it began at about {number:g}: its identity is -INFINITY",
                (_begins(r"-\s*\d[\d.]*(?:e\+?\d+)?f?", r"\w+"),),
            )
            yield below, self.softmax(np.maximum(self.greatest, np.float32(number)))
        for more, what in ((1.0, "1"), (float(self.threads), "1 in each thread")):
            of_sum = Mistake(
                f"the sum looks as if it began at {what}: its identity is 0",
                (_begins(r"1\.?0*f?", r"\w+"),),
            )
            yield of_sum, self.softmax(self.greatest, more=more)

    def of_terms(self) -> Tried:
        """Yield exponentials that are others, and results without a step."""
        plain = Mistake(
            "it looks as if no maximum were subtracted before the exponential, which overflows",
            _EXPONENTIAL,
        )
        yield plain, self.softmax(np.zeros_like(self.greatest))
        terms, raw = np.exp(self.x - self.greatest), np.exp(self.x)
        lacking = "it looks as if the maximum were subtracted in the {}, and not in the {}"
        of_sum = Mistake(lacking.format("terms", "sum"), _EXPONENTIAL)
        yield of_sum, self.result(terms, raw.sum(axis=1, keepdims=True))
        if not self.is_log:
            of_terms = Mistake(lacking.format("sum", "terms"), _EXPONENTIAL)
            yield of_terms, raw / terms.sum(axis=1, keepdims=True)
        powers = np.exp2(self.x - self.greatest)
        of_two = "it looks like powers of 2 in place of powers of e: exp2f takes x * log2(e)"
        total = powers.sum(axis=1, keepdims=True)
        yield Mistake(of_two, ("exp2|ex2",)), self.result(powers, total)
        if not self.is_log:
            yield Mistake("it looks as if nothing were divided by the sum"), terms
            return
        rounded = Mistake(
            "it looks like x - (maximum + log(sum)), which loses the digits of the logarithm where "
            "the maximum is large: subtract the maximum first",
            (r"log\w*\s*\(",),
        )
        yield rounded, self.x - (self.greatest + np.log(terms.sum(axis=1, keepdims=True)))

    def of_tails(self) -> Tried:
        """Yield sums that leave out the last columns."""
        cols = np.arange(self.x.shape[1])
        for width in (*VECTORS, WARP, self.threads):
            end = len(cols) // width * width
            if 0 < end < len(cols):
                lost = Mistake(
                    f"the sum looks as if it left out the last {len(cols) - end} of {len(cols)} "
                    f"columns, which are no whole {width}: a tail is missing",
                    _TAIL,
                )
                yield lost, self.softmax(self.greatest, cols < end)
        if len(cols) > self.threads:
            once = Mistake(
                f"the sum looks as if it were of the first {self.threads} columns alone: each "
                "thread adds up one, and no more",
                (r"\+=.*exp", r"exp"),
            )
            yield once, self.softmax(self.greatest, cols < self.threads)

    def of_threads(self) -> Tried:
        """Yield sums without what some threads have added up."""
        owner = np.arange(self.x.shape[1]) % self.threads
        for count, what in (
            (1, "the first thread has"),
            (WARP, "the first warp has"),
            (self.threads // 2, "the first half of the threads have"),
        ):
            if 0 < count < min(self.threads, len(owner)):
                lost = Mistake(
                    f"the sum looks as if it were of what {what} added up alone: partial sums of "
                    "other threads are lost",
                    _PARTIAL_SUMS,
                )
                yield lost, self.softmax(self.greatest, owner < count)

    def of_reductions(self) -> Tried:
        """Yield reductions of which a step is missing, or whose result only some threads get."""
        for threads in dict.fromkeys((self.threads, WARP)):
            own, sums = self._of_each_thread(threads, self.greatest)
            yield Mistake(_NOT_REDUCED.format("sum"), _EXPONENTIAL), self._divided(sums)
            yield Mistake(_NOT_REDUCED.format("maximum"), _MAXIMA), self._shifted(own)
            yield (
                Mistake(_ONE_LANE.format("sum"), _PARTIAL_SUMS),
                self._divided(_down(sums, np.add)),
            )
            yield (
                Mistake(_ONE_LANE.format("maximum"), _MAXIMA_OF_LANES),
                self._shifted(_down(own, np.maximum)),
            )
            for step in (2**bit for bit in range((threads - 1).bit_length())):
                lost = Mistake(
                    f"the sum looks as if threads {step} apart were not joined: a step of the "
                    "reduction is missing",
                    (r"\bfor\b.*(?:>>=|/=|\*=|<<=)", *_PARTIAL_SUMS),
                )
                apart = (np.arange(threads) & step > 0).astype(np.float32)
                near, far = ((sums * half).sum(axis=1) for half in (1 - apart, apart))
                yield lost, self._divided(np.where(apart, far[:, None], near[:, None]))
                yield lost, self._with_total(near[:, None])
            if threads & (threads - 1):
                halved = Mistake(
                    f"the sum looks as if {threads} threads were halved until one is left, which "
                    "loses some of an odd number of them",
                    (r"\bfor\b.*(?:>>=|/=)", *_PARTIAL_SUMS),
                )
                for greatest in (self.greatest, _halved(own, np.maximum)):
                    left = self._of_each_thread(threads, greatest)[1]
                    terms = np.exp(self.x - greatest)
                    yield halved, self.result(terms, _halved(left, np.add), greatest)

    def of_rescaling(self) -> Tried:
        """Yield sums of terms of several maxima, as an online softmax has them."""
        merged = (
            "the {0}' sums look as if they were added up without exp(own maximum - {1}'s maximum), "
            "by which each is to be multiplied"
        )
        for threads in dict.fromkeys((self.threads, WARP)):
            own, sums = self._of_each_thread(threads)
            yield Mistake(merged.format("threads", "row"), _PARTIAL_SUMS), self._with_total(sums)
            warp = np.arange(threads) // WARP
            each = np.stack([own[:, warp == one].max(axis=1) for one in np.unique(warp)])[warp].T
            rescaled = sums * np.exp(each - self.greatest)
            yield Mistake(merged.format("lanes", "warp"), _PARTIAL_SUMS), self._with_total(rescaled)
            rescaled = sums * np.exp(own - each)
            yield (
                Mistake(merged.format("warps", "row"), _PARTIAL_SUMS[1:]),
                self._with_total(rescaled),
            )
        running = np.maximum.accumulate(self.x, axis=1)
        total = np.exp(self.x - running).sum(axis=1, keepdims=True)
        not_rescaled = Mistake(
            "the running sum looks as if it were not multiplied by exp(old maximum - new maximum) "
            "where the maximum grows",
            _RUNNING_SUM,
        )
        yield not_rescaled, self.result(np.exp(self.x - self.greatest), total)

    def _of_each_thread(
        self, threads: int, greatest: Numbers | None = None
    ) -> tuple[Numbers, Numbers]:
        """Return the maximum of each thread's columns, and the sum of their terms.

        These are for a row's `greatest`, else for the thread's own maximum.
        """
        rows, cols = self.x.shape
        padded = np.full((rows, -(-cols // threads) * threads), -np.inf, np.float32)
        padded[:, :cols] = self.x
        columns = padded.reshape(rows, padded.shape[1] // threads, threads)
        own = np.maximum(columns.max(axis=1), np.finfo(np.float32).min)
        return own, np.exp(columns - (own if greatest is None else greatest)[:, None]).sum(axis=1)

    def _divided(self, sums: Numbers) -> Numbers:
        """Return the result where each thread divides by a sum of its own."""
        owner = np.arange(self.x.shape[1]) % sums.shape[1]
        return self.result(np.exp(self.x - self.greatest), sums[:, owner])

    def _shifted(self, maxima: Numbers) -> Numbers:
        """Return the result where each thread subtracts a maximum of its own."""
        greatest = maxima[:, np.arange(self.x.shape[1]) % maxima.shape[1]]
        terms = np.exp(self.x - greatest)
        return self.result(terms, terms.sum(axis=1, keepdims=True), greatest)

    def _with_total(self, sums: Numbers) -> Numbers:
        """Return the result with the sum of a row's `sums`."""
        return self.result(np.exp(self.x - self.greatest), sums.sum(axis=1, keepdims=True))


LEAST_PART = 1e-3
"""Share of a row's largest result from which on an element tells the factor of its row."""


def _slightly_off(x: Numbers, got: Numbers, truth: Numbers, is_log: bool) -> Mistake | None:
    """Return what rows of which each is off by a factor near 1 look like."""
    if is_log or not len(x):
        return None
    with np.errstate(all="ignore"):
        large = truth >= LEAST_PART * truth.max(axis=1, keepdims=True)
        off = np.nanmean(np.where(large, got / truth, np.nan), axis=1) - 1
        totals = np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)
        added = -off / (1 + off) * totals
    if not np.isfinite(off).all() or np.abs(off).max() < 2 * np.finfo(np.float32).eps:
        return None
    if added.min() > 0 and np.ptp(added) <= added.max() / 2:
        return Mistake(
            f"the sum looks as if about {np.median(added):.0e} were added to it", _DIVISIONS
        )
    return Mistake(
        f"the rows are off by factors of up to {1 + np.abs(off).max():.6g}: their sums have lost "
        "digits, as where they are added up in 16 bits",
        _RUNNING_SUM,
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
            f"the same {by} every element of a row: its sum is wrong, or what all terms share",
            _SUMS,
        )
    return None
