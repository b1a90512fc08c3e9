"""The explorer's own kernels, loaded: fill inputs, move what the limit moves, check outputs."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.accuracy import Accuracy
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.program import Program
from explorer.op import Mask, Op
from explorer.operands import Operand
from explorer.problem import Problem

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
_NOTHING_FOUND = np.array([0, 2**64 - 1, 0, 0, 0, 0, 0], np.uint64)

Addresses = Mapping[str, int]
"""Where a problem's operands lie, by their names."""


@dataclass(frozen=True, slots=True)
class LimitShape:
    """How a plain copy or stream splits its bytes: words of a thread, threads of a block, hints."""

    word_bytes: int
    unroll: int
    threads: int
    load_hint: str = "default"
    store_hint: str = "default"

    def __str__(self) -> str:
        load = "" if self.load_hint == "default" else f", load {self.load_hint}"
        store = "" if self.store_hint == "default" else f", store {self.store_hint}"
        shape = f"{self.unroll} x {self.word_bytes} bytes a thread, {self.threads} threads"
        return shape + load + store

    def entry(self, kind: str) -> str:
        """The kernel of copies.cu or streams.cu."""
        load = self.load_hint.replace("-", "_")
        return f"{kind}_{self.word_bytes}_{self.unroll}_{load}_{self.store_hint}"


LIMIT_SHAPES = tuple(
    LimitShape(*shape) for shape in product((8, 16), (1, 2, 4, 8), (64, 128, 256, 512, 1024))
)
"""Every way to split a plain copy, without cache hints."""

LIMIT_HINTS = tuple(product(("default", "cs", "no-allocate"), ("default", "cs", "cg")))
"""Cache hints of its loads and stores."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """What check_rows found: wrong elements, the first one's row and column, largest error.

    `infinite` of the wrong ones are NaN or infinite where a number is due, or the other way
    round; errors in ulps are those of elements whose truth is finite.
    """

    wrong: int
    row: int
    col: int
    error: float
    infinite: int
    max_ulp: float
    mean_ulp: float
    counted: int
    """Elements that the mean is of."""

    def with_(self, other: "DeviceCheck") -> "DeviceCheck":
        """Of both outputs together, where neither has a wrong element."""
        counted = self.counted + other.counted
        ulps = self.mean_ulp * self.counted + other.mean_ulp * other.counted
        return replace(
            self,
            error=max(self.error, other.error),
            max_ulp=max(self.max_ulp, other.max_ulp),
            mean_ulp=ulps / max(1, counted),
            counted=counted,
        )


class _Question(ctypes.Structure):
    """As in check.cu."""

    _fields_ = [
        *((name, _POINTER) for name in ("input", "grad", "mask", "lengths", "output")),
        *((name, _LONG) for name in ("rows", "inner", "input_stride", "output_stride")),
        ("mask_rows", _LONG),
        *((name, ctypes.c_double) for name in ("scale", "tolerance")),
        *((name, _INT) for name in ("cols", "op", "masked", "scaled", "steps")),
    ]

    @classmethod
    def of(cls, problem: Problem, addresses: Addresses, accuracy: Accuracy) -> "_Question":
        limits = accuracy.limits(problem.output_dtype)
        wide = problem.dtype.itemsize == 8
        scale = 1.0 if problem.scale is None else problem.scale
        return cls(
            **{name: addresses.get(name) for name in ("input", "grad", "mask", "lengths")},
            output=addresses["output"],
            rows=problem.rows,
            inner=problem.inner,
            input_stride=problem.input_stride,
            output_stride=problem.output_stride,
            mask_rows=problem.mask_rows,
            scale=scale if wide else float(np.float32(scale)),
            tolerance=limits.relative,
            cols=problem.cols,
            op=list(Op).index(problem.op),
            masked=list(Mask).index(problem.mask),
            scaled=problem.scale is not None,
            steps=limits.steps,
        )


class Tools:
    """The kernels of elements.cu to check.cu on one stream."""

    def __init__(self, cubin: bytes, stream: Any, accuracy: Accuracy) -> None:
        self.accuracy = accuracy
        """What outputs are to meet."""
        self._program = Program(cubin)
        self._stream = stream
        self._report = checked(driver.cuMemAlloc(_NOTHING_FOUND.nbytes))

    def free(self) -> None:
        """Unload the kernels."""
        checked(driver.cuMemFree(self._report))
        self._program.__exit__(None, None, None)

    def fill(self, problem: Problem, operand: Operand, address: int, count: int, seed: int) -> None:
        """Fill `count` elements of an operand: about normal noise with some outliers, or lengths.

        A backward op's `input` gets what the forward could have put out for such noise.
        """
        if operand.dtype is None:
            entry = "fill_lengths"
        elif operand.name == "input" and problem.op.is_backward:
            entry = f"fill_{problem.op.forward}"
        else:
            entry = "fill_noise"
        cols = () if entry == "fill_noise" else (problem.cols,)
        arguments = (address, count, *cols, seed & 0xFFFFFFFF)
        types = (_POINTER, _LONG, *(_INT for _ in cols), ctypes.c_uint)
        blocks = min(4096, -(-count // 256))
        self._program.launch_raw(entry, blocks, 256, 0, arguments, types, self._stream)

    def copy(self, shape: LimitShape, source: int, target: int, size: int) -> None:
        """Copy `size` bytes, rounded up to whole words."""
        words = -(-size // shape.word_bytes)
        types = (_POINTER, _POINTER, _LONG)
        self._limit("copy", shape, words, (source, target, words), types)

    def stream(
        self,
        shape: LimitShape,
        first: tuple[int, int],
        second: tuple[int, int],
        out: tuple[int, int],
    ) -> None:
        """Read the bytes of `first` and `second`, write those of `out`: (address, bytes) each."""
        arguments: list[int] = []
        for address, size in (first, second, out):
            arguments += [address, -(-size // shape.word_bytes)]
        words = max(arguments[1::2])
        self._limit("stream", shape, words, tuple(arguments), (_POINTER, _LONG) * 3)

    def _limit(
        self, kind: str, shape: LimitShape, words: int, arguments: Any, types: tuple[Any, ...]
    ) -> None:
        blocks = -(-words // (shape.threads * shape.unroll))
        entry = shape.entry(kind)
        self._program.launch_raw(entry, blocks, shape.threads, 0, arguments, types, self._stream)

    def truths(self, problem: Problem, addresses: Addresses, truths: int) -> None:
        """Write the float64 truth of every element, (rows, cols), to address `truths`."""
        self._check(problem, addresses, truths)

    def check_rows(self, problem: Problem, addresses: Addresses) -> DeviceCheck:
        """Compare an output with the float64 truth of its inputs."""
        size = _NOTHING_FOUND.nbytes
        checked(driver.cuMemcpyHtoDAsync(self._report, _NOTHING_FOUND, size, self._stream))
        self._check(problem, addresses, 0)
        report = np.empty_like(_NOTHING_FOUND)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, size, self._stream))
        checked(driver.cuStreamSynchronize(self._stream))
        first = int(report[1]) if report[0] else 0
        row, col = divmod(first, problem.cols)
        numbers = report.view(np.float64)
        mean = float(numbers[6]) / max(1, int(report[5]))
        return DeviceCheck(
            wrong=int(report[0]),
            row=row,
            col=col,
            error=float(numbers[2]),
            infinite=int(report[3]),
            max_ulp=float(numbers[4]),
            mean_ulp=mean,
            counted=int(report[5]),
        )

    def _check(self, problem: Problem, addresses: Addresses, truths: int) -> None:
        threads = 32 if problem.cols <= 512 else 256 if problem.cols <= 8192 else 1024
        question = _Question.of(problem, addresses, self.accuracy)
        arguments = (question, int(self._report), truths)
        types = (None, _POINTER, _POINTER)
        blocks = min(problem.rows, 2**16)
        self._program.launch_raw("check_rows", blocks, threads, 0, arguments, types, self._stream)
