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
_NOTHING_WRONG = np.array([0, 2**64 - 1, 0], np.uint64)


@dataclass(frozen=True, slots=True)
class CopyShape:
    """How a plain copy splits its bytes: words of a thread, threads of a block, cache hint."""

    word_bytes: int
    unroll: int
    threads: int
    hint: str

    def __str__(self) -> str:
        hint = "" if self.hint == "plain" else f", {self.hint}"
        return f"{self.unroll} x {self.word_bytes} bytes a thread, {self.threads} threads{hint}"


COPY_SHAPES = tuple(
    CopyShape(*shape)
    for shape in product((8, 16), (1, 2, 4, 8), (64, 128, 256, 512, 1024), ("plain", "cs"))
)
"""Every plain copy that tools.cu has."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """What check_rows found: wrong elements, the first one's row and column, largest error."""

    wrong: int
    row: int
    col: int
    error: float


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
            f"copy_{shape.word_bytes}_{shape.unroll}_{shape.hint}",
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
        report = np.empty(3, np.uint64)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, report.nbytes, self._stream))
        checked(driver.cuStreamSynchronize(self._stream))
        first = int(report[1]) if report[0] else 0
        row, col = divmod(first, problem.cols)
        return DeviceCheck(int(report[0]), row, col, float(report[2:].view(np.float64)[0]))
