"""The explorer's own kernels that fill inputs and check outputs."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.program import Program, checked
from explorer.model.accuracy import Accuracy
from explorer.model.element import IndexType
from explorer.model.problem import Mask, Operand, Problem

# ------------------------------------------------------------------ checks


Addresses = Mapping[str, int]
"""The addresses of a problem's operands, by name."""

CHECK_BLOCKS = 2**16
"""Most blocks of a check: enough for any GPU, and each block reports its findings once."""

NOTHING_FOUND = np.array([0, 2**64 - 1, 0, 0, 0, 0, 0, 0], np.uint64)
"""A Report of check.cu before the check."""


_OPERANDS = ("input", "grad", "mask", "lengths", "output")


def check_grid(problem: Problem) -> tuple[int, int]:
    """Return the blocks and threads of a kernel whose blocks each work on a row at a time."""
    threads = 32 if problem.cols <= 512 else 256 if problem.cols <= 8192 else 1024
    return min(problem.rows, CHECK_BLOCKS), threads


class Question(ctypes.Structure):
    """The structure of truth.cu: a problem, its operands' addresses, and its output's tolerance."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _OPERANDS),
        *((name, ctypes.c_longlong) for name in ("rows", "inner", "input_stride")),
        *((name, ctypes.c_longlong) for name in ("output_stride", "mask_rows")),
        *((name, ctypes.c_double) for name in ("scale", "tolerance", "exact_tolerance")),
        *((name, ctypes.c_int) for name in ("cols", "result_cols", "masked", "scaled", "steps")),
    ]

    @classmethod
    def of(cls, problem: Problem, addresses: Addresses, accuracy: Accuracy) -> "Question":
        """Return the question about a problem's output.

        Operands that `addresses` does not name are null; the scale is rounded as kernels take it.
        """
        allowed = accuracy.tolerance(problem.output_dtype)
        scale = 1.0 if problem.scale is None else problem.scale
        return cls(
            **{name: addresses.get(name) for name in _OPERANDS},
            rows=problem.rows,
            inner=problem.inner,
            input_stride=problem.input_stride,
            output_stride=problem.output_stride,
            mask_rows=problem.mask_rows,
            scale=float(problem.dtype.arithmetic.numpy.type(scale)),
            tolerance=allowed.relative,
            exact_tolerance=allowed.exact_relative,
            cols=problem.cols,
            result_cols=problem.result_cols,
            masked=list(Mask).index(problem.mask),
            scaled=problem.scale is not None,
            steps=allowed.steps,
        )


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The result of check_rows: number of wrong elements, row and column of the first, errors.

    `infinite` of the wrong ones are NaN or infinite, or should be. Errors in ulps are those of
    elements that are finite and should be.
    """

    wrong: int
    row: int
    col: int
    error: float
    infinite: int
    max_ulp: float
    mean_ulp: float
    counted: int
    """Number of elements in the mean."""
    certain: int = 0
    """Finite wrong elements that rounding cannot explain: not 0 where 0 is due, or in a row whose
    sum is exact."""

    def combined(self, other: "DeviceCheck") -> "DeviceCheck":
        """Return the errors of two outputs together, neither of which has a wrong element."""
        counted = self.counted + other.counted
        ulps = self.mean_ulp * self.counted + other.mean_ulp * other.counted
        return replace(
            self,
            error=max(self.error, other.error),
            max_ulp=max(self.max_ulp, other.max_ulp),
            mean_ulp=ulps / max(1, counted),
            counted=counted,
        )

    @classmethod
    def of(cls, report: NDArray[Any], problem: Problem) -> "DeviceCheck":
        """Read a Report of check.cu: eight 64-bit words."""
        numbers = report.view(np.float64)
        wrong = int(report[0])
        counted = int(numbers[5])
        row, col = divmod(int(report[1]), problem.result_cols) if wrong else (0, 0)
        return cls(
            wrong=wrong,
            row=row,
            col=col,
            error=float(numbers[2]),
            infinite=int(report[3]),
            max_ulp=float(numbers[4]),
            mean_ulp=float(numbers[6]) / max(1, counted),
            counted=counted,
            certain=int(report[7]),
        )


# ------------------------------------------------------------------ source


def check_sources(problem: Problem) -> tuple[str, str]:
    """Return CUDA C++ that fills inputs and writes truths, and CUDA C++ that checks an output.

    Both serve the problem's op and types alone.
    """
    op = "".join(word.title() for word in problem.op.split("_"))
    shared = [f"#define OP k{op}", *_elements(problem), source_part("truth")]
    fill, check = ("\n".join([*shared, source_part(last)]) for last in ("fill", "check"))
    return fill, check


def _elements(problem: Problem) -> Iterator[str]:
    """Yield CUDA C++ that defines the types of input and output."""
    element, output = problem.dtype, problem.output_dtype
    types = dict.fromkeys((element, output))
    yield from (f"#include <{dtype.cuda.header}>" for dtype in types if dtype.cuda.header)
    yield source_part("elements")
    for dtype in types:
        of = dtype.cuda
        numbers = f"{dtype.mantissa_bits}, {dtype.smallest_normal.hex()}"
        functions = f"{of.to_number}, {of.from_number}, {of.from_double}"
        yield f"DEFINE_ELEMENT({of.name}, {numbers}, {functions})"
    yield f"using Element = {element.cuda.name};"
    yield f"using Output = {output.cuda.name};"
    yield f"constexpr bool kWide = {str(element.in_double).lower()};  // arithmetic is fp64"


@cache
def source_part(part: str) -> str:
    """Return the text of PART.cu beside this file."""
    return Path(__file__).with_name(f"{part}.cu").read_text()


# ------------------------------------------------------------------ tools


_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int


class Tools:
    """The explorer's own kernels on one stream: those of `limits.tools_sources`."""

    def __init__(self, cubins: Sequence[bytes], stream: Any, accuracy: Accuracy) -> None:
        self.accuracy = accuracy
        """The accuracy that outputs must meet."""
        self._programs = [Program(cubin) for cubin in cubins]
        self._program_of: dict[str, Program] = {}
        """By entry, because searching the programs takes longer than a launch."""
        self.stream = stream
        self._report = checked(driver.cuMemAlloc(NOTHING_FOUND.nbytes))

    def free(self) -> None:
        """Unload the kernels."""
        checked(driver.cuMemFree(self._report))
        for program in self._programs:
            program.__exit__(None, None, None)

    def fill(self, problem: Problem, operand: Operand, address: int, count: int, seed: int) -> None:
        """Fill `count` elements of an operand: nearly normal noise with some outliers, or lengths.

        A backward op's `input` gets possible outputs of the forward op for such noise.
        """
        if isinstance(operand.dtype, IndexType):
            entry = "fill_lengths"
        elif operand.name == "input" and problem.operator.is_gradient:
            entry = f"fill_{problem.operator.forward}"
        else:
            entry = "fill_noise"
        cols = () if entry == "fill_noise" else (problem.cols,)
        arguments = (address, count, *cols, seed & 0xFFFFFFFF)
        types = (_POINTER, _LONG, *(_INT for _ in cols), ctypes.c_uint)
        blocks = min(4096, -(-count // 256))
        self.launch(entry, blocks, 256, arguments, types)

    def launch(
        self, entry: str, blocks: int, threads: int, arguments: Any, types: tuple[Any, ...]
    ) -> None:
        """Launch an entry of any of the programs with plain numbers."""
        if entry not in self._program_of:
            self._program_of[entry] = next(one for one in self._programs if one.has(entry))
        program = self._program_of[entry]
        program.launch_raw(entry, blocks, threads, 0, arguments, types, self.stream)

    def write_truths(self, problem: Problem, addresses: Addresses, truths: int) -> None:
        """Write the float64 truth of every element, (rows, cols), to address `truths`."""
        self._by_rows("write_truths", problem, addresses, truths)

    def check_rows(
        self, problem: Problem, addresses: Addresses, accuracy: Accuracy | None = None
    ) -> DeviceCheck:
        """Compare an output with the float64 truth of its inputs.

        It must meet `accuracy`, by default the session's.
        """
        size = NOTHING_FOUND.nbytes
        checked(driver.cuMemcpyHtoDAsync(self._report, NOTHING_FOUND, size, self.stream))
        self._by_rows("check_rows", problem, addresses, int(self._report), accuracy)
        report = np.empty_like(NOTHING_FOUND)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, size, self.stream))
        checked(driver.cuStreamSynchronize(self.stream))
        return DeviceCheck.of(report, problem)

    def _by_rows(
        self,
        entry: str,
        problem: Problem,
        addresses: Addresses,
        result: int,
        accuracy: Accuracy | None = None,
    ) -> None:
        """Launch a kernel whose blocks work on rows (`check_grid`)."""
        blocks, threads = check_grid(problem)
        arguments = (Question.of(problem, addresses, accuracy or self.accuracy), result)
        types = (None, _POINTER)
        self.launch(entry, blocks, threads, arguments, types)
