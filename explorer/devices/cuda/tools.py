"""The explorer's own kernels, loaded: fill inputs, move what the limit moves, check outputs."""

import ctypes
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.accuracy import Accuracy
from explorer.devices.cuda.device_check import (
    NOTHING_FOUND,
    Addresses,
    DeviceCheck,
    Question,
    check_grid,
)
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.program import Program
from explorer.operands import Operand
from explorer.problem import Problem

# ------------------------------------------------------------------ source


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


# ------------------------------------------------------------------ tools


_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int


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


class Tools:
    """The kernels of elements.cu to check.cu on one stream."""

    def __init__(self, cubin: bytes, stream: Any, accuracy: Accuracy) -> None:
        self.accuracy = accuracy
        """What outputs are to meet."""
        self._program = Program(cubin)
        self._stream = stream
        self._report = checked(driver.cuMemAlloc(NOTHING_FOUND.nbytes))

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

    def write_truths(self, problem: Problem, addresses: Addresses, truths: int) -> None:
        """Write the float64 truth of every element, (rows, cols), to address `truths`."""
        self._by_rows("write_truths", problem, addresses, truths)

    def check_rows(
        self, problem: Problem, addresses: Addresses, accuracy: Accuracy | None = None
    ) -> DeviceCheck:
        """Compare an output with the float64 truth of its inputs, within the session's limits.

        `accuracy` is that of other limits.
        """
        size = NOTHING_FOUND.nbytes
        checked(driver.cuMemcpyHtoDAsync(self._report, NOTHING_FOUND, size, self._stream))
        self._by_rows("check_rows", problem, addresses, int(self._report), accuracy)
        report = np.empty_like(NOTHING_FOUND)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, size, self._stream))
        checked(driver.cuStreamSynchronize(self._stream))
        return DeviceCheck.of(report, problem)

    def _by_rows(
        self,
        entry: str,
        problem: Problem,
        addresses: Addresses,
        result: int,
        accuracy: Accuracy | None = None,
    ) -> None:
        """Launch a kernel of check.cu."""
        blocks, threads = check_grid(problem)
        arguments = (Question.of(problem, addresses, accuracy or self.accuracy), result)
        types = (None, _POINTER)
        self._program.launch_raw(entry, blocks, threads, 0, arguments, types, self._stream)
