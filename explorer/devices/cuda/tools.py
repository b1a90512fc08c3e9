"""The explorer's own kernels that fill inputs and check results."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.program import Program, checked
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType, ElementType, IndexType
from explorer.model.problem import HEAD_DIMS, Mask, Operand, Problem, results, scalars
from explorer.ops import OPERATORS, Extent
from explorer.reference.truth import factor_of, roundings

# ------------------------------------------------------------------ checks


Addresses = Mapping[str, int]
"""The addresses of a problem's operands, by name."""

CHECK_BLOCKS = 2**16
"""Most blocks of a check: enough for any GPU, and each block reports its findings once."""

NOTHING_FOUND = np.array([0, 2**64 - 1, 0, 0, 0, 0, 0, 0], np.uint64)
"""A Report of check.cu before the check."""


_ASKED = tuple(
    dict.fromkeys(result.name for operator in OPERATORS.values() for result in operator.results)
)
"""The results that a question can be about, in the order of the enumeration `Asked`."""


def check_grid(problem: Problem) -> tuple[int, int]:
    """Return the blocks and threads of a kernel whose blocks each work on a row at a time.

    Of attention a thread has an element of the head dimension at most.
    """
    fewest = max(HEAD_DIMS) if problem.attends else 32
    threads = fewest if problem.cols <= 512 else 256 if problem.cols <= 8192 else 1024
    return min(problem.rows, CHECK_BLOCKS), threads


class Question(ctypes.Structure):
    """The structure of truth.cu: a problem, its operands, and one of its results."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input", "second", "columns", "output")),
        *((name, ctypes.c_void_p) for name in ("log_sum", "loss_grad")),
        *((name, ctypes.c_longlong) for name in ("rows", "inner", "input_stride")),
        *((name, ctypes.c_longlong) for name in ("output_stride", "ids_stride_or_mask_rows")),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("tolerance", "exact_tolerance")),
        *((name, ctypes.c_int) for name in ("cols", "result_cols", "asked", "masked", "steps")),
    ]

    @classmethod
    def of(
        cls, problem: Problem, result: Operand, addresses: Addresses, accuracy: Accuracy
    ) -> "Question":
        """Return the question about a result of a problem.

        Operands that `addresses` does not name are null; the scale is rounded as kernels take it.
        """
        allowed = accuracy.tolerance(result.dtype)
        return cls(
            input=addresses.get("input"),
            second=next(
                (addresses[n] for n in ("grad", "mask", "maximum") if n in addresses), None
            ),
            columns=addresses.get("lengths", addresses.get("ids")),
            output=addresses.get(result.name),
            log_sum=addresses.get("log_sum"),
            loss_grad=addresses.get("loss_grad"),
            rows=problem.rows,
            inner=problem.inner,
            input_stride=problem.input_stride,
            output_stride=result.stride,
            ids_stride_or_mask_rows=problem.ids_stride or problem.mask_rows,
            scale=factor_of(problem),
            tolerance=allowed.relative,
            exact_tolerance=allowed.exact_relative,
            cols=problem.cols,
            result_cols=result.cols,
            asked=_ASKED.index(result.name),
            masked=list(Mask).index(problem.mask),
            steps=allowed.steps,
        )


class CacheQuestion(ctypes.Structure):
    """The structure of attention_truth.cu: the same of attention, which reads a cache of keys."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "lengths", "output")),
        *((name, ctypes.c_longlong) for name in ("rows", "key_stride", "head_stride")),
        *((name, ctypes.c_double) for name in ("scale", "roundings")),
        *((name, ctypes.c_float) for name in ("tolerance", "exact_tolerance")),
        *((name, ctypes.c_int) for name in ("cols", "group", "key_heads", "result_cols")),
        *((name, ctypes.c_int) for name in ("asked", "steps")),
    ]

    @classmethod
    def of(
        cls, problem: Problem, result: Operand, addresses: Addresses, accuracy: Accuracy
    ) -> "CacheQuestion":
        """Return the question about a result of a problem, as `Question.of` does."""
        allowed, numbers = accuracy.tolerance(result.dtype), scalars(problem)
        names = ("query", "key", "value", "lengths")
        return cls(
            **{name: addresses.get(name) for name in names},
            output=addresses.get(result.name),
            rows=problem.rows,
            key_stride=numbers["key_stride"].value,
            head_stride=numbers["head_stride"].value,
            scale=factor_of(problem),
            roundings=roundings(problem),
            tolerance=allowed.relative,
            exact_tolerance=allowed.exact_relative,
            cols=problem.cols,
            group=problem.of_group,
            key_heads=numbers["key_heads"].value,
            result_cols=result.cols,
            asked=_ASKED.index(result.name),
            steps=allowed.steps,
        )


def question_of(
    problem: Problem, result: Operand, addresses: Addresses, accuracy: Accuracy
) -> Question | CacheQuestion:
    """Return the question about a result of a problem, in the structure of its truth's source."""
    kind = CacheQuestion if problem.attends else Question
    return kind.of(problem, result, addresses, accuracy)


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The check of a result: number of wrong elements, row and column of the first, errors.

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
        """Return the errors of two arrays of a result, neither of which has a wrong element."""
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
    def of(cls, report: NDArray[Any], result: Operand) -> "DeviceCheck":
        """Read a Report of check.cu on a result: eight 64-bit words."""
        numbers = report.view(np.float64)
        wrong = int(report[0])
        counted = int(numbers[5])
        row, col = divmod(int(report[1]), result.cols) if wrong else (0, 0)
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


Checks = tuple[DeviceCheck, ...]
"""The check of each result of a problem."""


def combined(checks: Sequence[Checks]) -> Checks:
    """Return the errors of several launches together, none of which has a wrong element."""
    return tuple(reduce(DeviceCheck.combined, of_one) for of_one in zip(*checks, strict=True))


# ------------------------------------------------------------------ source


def check_sources(problem: Problem) -> tuple[str, ...]:
    """Return CUDA C++ that fills inputs and writes truths, and some that checks results of a type.

    They serve the problem's op, types and results alone. There is a text for each type of results.
    """
    wanted = results(problem)
    texts = [(*_truths(problem, wanted), source_part("fill"))]
    for dtype in _types(wanted):
        of_type = [result for result in wanted if result.dtype is dtype]
        entry = f"CHECK({check_entry(dtype)}, {dtype.cuda.name})"
        texts.append((*_truths(problem, of_type), source_part("check"), entry))
    return tuple(map("\n".join, texts))


def _types(operands: Sequence[Operand]) -> tuple[ElementType, ...]:
    return tuple(dict.fromkeys(operand.dtype for operand in operands))


def _truths(problem: Problem, asked: Sequence[Operand]) -> Iterator[str]:
    """Yield CUDA C++ that works out the truth of some results."""
    yield f"#define READS_IDS {str(problem.ids_dtype is not None).lower()}"
    yield from _elements(problem, asked)
    yield f"enum Asked {{ {', '.join(map(_constant, _ASKED))} }};"
    yield f"constexpr unsigned kAsked = {sum(1 << _ASKED.index(one.name) for one in asked)};"
    yield source_part("common")
    if problem.attends:
        yield f"constexpr int kHeadDim = {problem.head_dim};"
        yield source_part("attention_truth")
        return
    yield f"#define OP {_constant(problem.op)}"
    yield f"#define IGNORED {problem.ignore_index or 0}"
    yield f"#define SMOOTHING {problem.label_smoothing or 0.0!r}"
    yield f"#define Z_LOSS {problem.z_loss or 0.0!r}"
    yield f"#define SOFTCAP {problem.softcap or 0.0!r}"
    yield source_part("truth")


def check_entry(dtype: ElementType) -> str:
    """Return the kernel that checks results of a type."""
    return f"check_{dtype}"


def _constant(name: str) -> str:
    """Return the constant of truth.cu for an op or a result: kLogSum."""
    return f"k{''.join(word.title() for word in name.split('_'))}"


def _elements(problem: Problem, asked: Sequence[Operand]) -> Iterator[str]:
    """Yield CUDA C++ that defines the types of inputs and of some results."""
    element, ids = problem.dtype, problem.ids_dtype or IndexType.INT64
    types = dict.fromkeys((element, *_types(asked)))
    yield from (f"#include <{dtype.cuda.header}>" for dtype in types if dtype.cuda.header)
    yield source_part("elements")
    for dtype in types:
        of = dtype.cuda
        numbers = "0, 1.0"  # of whole numbers
        if isinstance(dtype, DType):
            numbers = f"{dtype.mantissa_bits}, {dtype.smallest_normal.hex()}"
        functions = f"{of.to_number}, {of.from_number}, {of.from_double}"
        yield f"DEFINE_ELEMENT({of.name}, {numbers}, {functions})"
    yield f"using Element = {element.cuda.name};"
    yield f"using Id = {ids.cuda.name};"
    yield f"using Number = {element.arithmetic.cuda.name};"
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
        """The accuracy that results must meet."""
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
        """Fill `count` elements of an operand: noise, numbers of rows, lengths, or ids.

        Noise is nearly normal, with some outliers. A backward op's `input` gets possible outputs of
        the forward op for such noise.
        """
        if isinstance(operand.dtype, IndexType):
            entry = f"fill_{operand.name}"
        elif operand.name == "input" and problem.operator.is_gradient:
            entry = f"fill_{problem.operator.forward}"
        else:
            of_rows = problem.operator.operands.get(operand.name) is Extent.ROW
            entry = "fill_numbers" if of_rows else "fill_noise"
        cols = () if entry in ("fill_noise", "fill_numbers") else (problem.cols,)
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

    def write_truths(
        self, problem: Problem, result: Operand, addresses: Addresses, truths: int
    ) -> None:
        """Write the float64 truth of every element of a result, as rows, to address `truths`."""
        question = question_of(problem, result, addresses, self.accuracy)
        self._by_rows("write_truths", problem, question, truths)

    def check_rows(
        self, problem: Problem, addresses: Addresses, accuracy: Accuracy | None = None
    ) -> Checks:
        """Compare each result with the float64 truth of its inputs.

        It must meet `accuracy`, by default the session's.
        """
        allowed = accuracy or self.accuracy
        return tuple(
            self._check(problem, result, question_of(problem, result, addresses, allowed))
            for result in results(problem)
        )

    def _check(self, problem: Problem, result: Operand, question: ctypes.Structure) -> DeviceCheck:
        size = NOTHING_FOUND.nbytes
        checked(driver.cuMemcpyHtoDAsync(self._report, NOTHING_FOUND, size, self.stream))
        self._by_rows(check_entry(result.dtype), problem, question, int(self._report))
        report = np.empty_like(NOTHING_FOUND)
        checked(driver.cuMemcpyDtoHAsync(report, self._report, size, self.stream))
        checked(driver.cuStreamSynchronize(self.stream))
        return DeviceCheck.of(report, result)

    def _by_rows(self, entry: str, problem: Problem, question: ctypes.Structure, to: int) -> None:
        """Launch a kernel whose blocks work on rows (`check_grid`)."""
        blocks, threads = check_grid(problem)
        arguments = (question, to)
        types = (None, _POINTER)
        self.launch(entry, blocks, threads, arguments, types)
