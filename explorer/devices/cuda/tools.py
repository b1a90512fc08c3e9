"""The explorer's own kernels, loaded: fill inputs, copy, check against float64."""

import ctypes
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.program import Program
from explorer.problem import Problem

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
_NOTHING_WRONG = np.array([0, 2**64 - 1, 0, 0], np.uint64)


@dataclass(frozen=True, slots=True)
class CopyShape:
    """How a plain copy splits its bytes: words of a thread, threads of a block, cache hints."""

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

    @property
    def entry(self) -> str:
        """The kernel of tools.cu."""
        load = self.load_hint.replace("-", "_")
        return f"copy_{self.word_bytes}_{self.unroll}_{load}_{self.store_hint}"


COPY_SHAPES = tuple(
    CopyShape(*shape) for shape in product((8, 16), (1, 2, 4, 8), (64, 128, 256, 512, 1024))
)
"""Every way to split a plain copy, without cache hints."""

COPY_HINTS = tuple(product(("default", "cs", "no-allocate"), ("default", "cs", "cg")))
"""Cache hints of its loads and stores."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """What check_rows found: wrong elements, the first one's row and column, largest error.

    `nan` of the wrong ones are NaN where a number is due, or the other way round.
    """

    wrong: int
    row: int
    col: int
    error: float
    nan: int


class Tools:
    """Kernels of tools.cu on one stream."""

    def __init__(self, cubin: bytes, stream: Any) -> None:
        self._program = Program(cubin)
        self._stream = stream
        self._report = checked(driver.cuMemAlloc(_NOTHING_WRONG.nbytes))

    def fill_input(self, address: int, count: int, seed: int) -> None:
        """Fill `count` elements with about normal noise and some outliers."""
        blocks = min(4096, -(-count // 256))
        self._program.launch_raw(
            "fill_input",
            blocks,
            256,
            0,
            (address, count, seed & 0xFFFFFFFF),
            (_POINTER, _LONG, ctypes.c_uint),
            self._stream,
        )

    def copy(self, shape: CopyShape, source: int, target: int, size: int) -> None:
        """Copy `size` bytes, rounded up to whole words."""
        words = -(-size // shape.word_bytes)
        blocks = -(-words // (shape.threads * shape.unroll))
        self._program.launch_raw(
            shape.entry,
            blocks,
            shape.threads,
            0,
            (source, target, words),
            (_POINTER, _POINTER, _LONG),
            self._stream,
        )

    def check_rows(
        self, problem: Problem, source: int, output: int, truths: int = 0
    ) -> DeviceCheck:
        """Compare an output with the float64 truth of its input; `truths` receives that truth."""
        checked(
            driver.cuMemcpyHtoDAsync(
                self._report, _NOTHING_WRONG, _NOTHING_WRONG.nbytes, self._stream
            )
        )
        threads = 32 if problem.cols <= 512 else 256 if problem.cols <= 8192 else 1024
        arguments = (source, output, problem.rows, problem.cols, int(self._report), truths)
        types = (_POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER)
        blocks = min(problem.rows, 2**16)
        self._program.launch_raw("check_rows", blocks, threads, 0, arguments, types, self._stream)
        report = np.empty(4, np.uint64)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, report.nbytes, self._stream))
        checked(driver.cuStreamSynchronize(self._stream))
        first = int(report[1]) if report[0] else 0
        row, col = divmod(first, problem.cols)
        error = float(report[2:3].view(np.float64)[0])
        return DeviceCheck(int(report[0]), row, col, error, int(report[3]))
