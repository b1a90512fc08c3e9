"""The limit of a problem: the fastest of many kernels that move its bytes and compute nothing.

Where the limit is a reading (`Problem.limit`), they read all matrices and store nothing: ids and
results, a few numbers a row, are left out. For very short rows they are 1 to 20 % of the bytes, by
which the limit is stricter. Of 8192 x 4096 f32 on an H200, a reading takes 30 us and a kernel that
reads an id of each row as well 33 us, where a stream of both took 45 us.
"""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import chain, product
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingBuffers
from explorer.devices.cuda.program import checked
from explorer.devices.cuda.tools import Tools, check_sources, source_part
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem
from explorer.ops import Limit

# ------------------------------------------------------------------ shapes


class Kind(StrEnum):
    """What a limit's kernel moves, and in which order. The names are those of its entries."""

    COPY = "copy"
    """One matrix to another of as many bytes."""
    PAIR = "pair"
    """Two matrices to one, each of as many bytes."""
    READ = "read"
    """One matrix, and nothing is stored."""
    STREAM = "stream"
    """Some bytes to others, each block its share of both."""
    ROWS = "rows"
    """The rows of a problem, as a softmax moves them: what the mask shows of each is read."""


HINTS = tuple(product(("default", "cs", "no-allocate"), ("default", "cs", "cg")))
"""Cache hints of loads and stores."""

FIRST_HINTS = (("default", "default"), ("cs", "cs"))
"""Those that every shape is timed with at first. Which shape is best differs between the two: by
the first alone, copies of 17 MB came to be 4 % slower than the best of all on an H200. Shapes that
wait are timed with the second alone: where they are the fastest, they are so with these."""

ROW_HINTS = (("default", "default"), ("default", "cg"), ("cs", "cs"), ("no-allocate", "cs"))
"""Those of kernels that move rows: with all of them, these kernels would take twice as long to
compile as all others."""

ROW_WAITS = (0, 1, 8)
"""How often kernels that move rows wait: of one to sixteen times, these were the fastest under
masks on an H100. A warp of a softmax exchanges five times for each of two reductions."""

READ_HINTS = (("default", "default"), ("no-allocate", "default"))
"""Those of kernels that store nothing. On an H200 the first was faster by 1 to 2 % from 64 MB on,
the second by 2 % for 16 MB and less; with evict-first loads they took the second one's time."""

_LOADS = {"default": "kPlain", "cs": "kStreaming", "no-allocate": "kNoAllocate"}
_STORES = {"default": "kPlain", "cs": "kStreaming", "cg": "kL2"}
_WORDS = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}


@dataclass(frozen=True, slots=True)
class LimitShape:
    """How a limit's kernel shares out its bytes: words of a thread, threads of a block, hints."""

    kind: Kind
    word_bytes: int
    unroll: int
    threads: int
    threads_per_row: int = 0
    """Of Kind.ROWS alone."""
    is_fitted: bool = False
    """Of Kind.ROWS alone: whether the text of its kernel says how many threads share a row."""
    last_first: bool = False
    """Of Kind.ROWS alone, and under a causal mask: whether the first blocks move the last rows."""
    waits: int = 0
    """How often a block, or a row's threads, wait for all that they load before they store."""
    load_hint: str = "default"
    store_hint: str = "default"
    stores: bool = True
    """Whether it writes what the problem writes; else it only reads."""

    def __str__(self) -> str:
        waits = f"{self.waits} times" if self.waits > 1 else "once"
        particulars = {
            f"{self.threads_per_row} a row": self.threads_per_row,
            "made for these rows": self.is_fitted,
            "the last rows first": self.last_first,
            f"waits {waits} for its loads": self.waits,
            f"load {self.load_hint}": self.load_hint != "default",
            f"store {self.store_hint}": self.store_hint != "default",
        }
        name = "" if self.kind in (Kind.COPY, Kind.READ) else f"{self.kind}, "
        shape = f"{name}{self.unroll} x {self.word_bytes} bytes a thread, {self.threads} threads"
        return ", ".join([shape, *(words for words, is_so in particulars.items() if is_so)])

    @property
    def entry(self) -> str:
        """The name of its kernel."""
        load = self.load_hint.replace("-", "_")
        fitted = f"_{self.threads_per_row}" if self.is_fitted else ""
        return f"{self.kind}_{self.word_bytes}_{self.unroll}{fitted}_{load}_{self.store_hint}"

    @property
    def instance(self) -> str:
        """The line of CUDA C++ that makes its kernel, by the macro of its kind."""
        held_bytes = self.word_bytes * self.unroll
        most = 1024 if self.kind is not Kind.ROWS and held_bytes <= 128 else _MOST_THREADS
        args = f"{self.entry}, {_WORDS[self.word_bytes]}, {most}, {self.unroll}"
        if self.kind is Kind.ROWS:
            args += f", {self.threads_per_row}, {self.row_shift}" if self.is_fitted else ", 0, 0"
        return f"{self.kind.upper()}({args}, {_LOADS[self.load_hint]}, {_STORES[self.store_hint]})"

    @property
    def row_shift(self) -> int:
        """Of Kind.ROWS alone: the power of two of a row's threads, if blocks may have several rows.

        Else more than any block has, by which every shift of a thread's number is 0.
        """
        group = self.threads_per_row
        is_power = group & (group - 1) == 0
        return group.bit_length() - 1 if is_power else _MOST_THREADS.bit_length()

    @property
    def block_rows(self) -> int:
        """Of Kind.ROWS alone: the rows that a block moves."""
        return self.threads // self.threads_per_row

    def first_variations(self) -> list["LimitShape"]:
        """Return the shape as it is timed to choose those that are timed in all `variations`.

        One that moves rows also as it waits: without that, those that are 0.6 % faster than all
        others at 4096 x 4096 f32 under lengths were not found on an H100.
        """
        if not self.stores:
            return self.variations()
        plain, hinted = self._hinted(FIRST_HINTS)
        if self.waits:
            return [hinted]
        return [plain, hinted, *([replace(hinted, waits=1)] if self.kind is Kind.ROWS else [])]

    def variations(self) -> list["LimitShape"]:
        """Return the same shape with all cache hints of its kind.

        One that moves rows also with all loads before any store, as kernels do whose threads wait
        for a row's sum (0.8 % less time under a causal mask on an H200), or waiting eight times
        (1.3 % less at 16384 x 1024 f32 under such a mask on an H100); and by words of 16 bytes also
        by twice as many of 8. Where nothing is stored, nothing waits.
        """
        if not self.stores:
            return self._hinted(READ_HINTS)
        if self.kind is not Kind.ROWS:
            return self._hinted(HINTS)
        shapes = [self]
        if self.word_bytes == 16:
            shapes.append(replace(self, word_bytes=8, unroll=2 * self.unroll))
        hinted = chain.from_iterable(shape._hinted(ROW_HINTS) for shape in shapes)
        return [replace(one, waits=waits) for one in hinted for waits in ROW_WAITS]

    def _hinted(self, hints: Iterable[tuple[str, str]]) -> list["LimitShape"]:
        return [replace(self, load_hint=load, store_hint=store) for load, store in hints]


def contiguous_kind(problem: Problem) -> Kind:
    """Return what moves a problem's bytes from one end of its matrices to the other."""
    if only_reads(problem):
        return Kind.STREAM if _second(problem) else Kind.READ
    if is_plain_copy(problem):
        return Kind.COPY
    is_pair = _read_bytes(problem) == 2 * _written_bytes(problem) and problem.operator.is_gradient
    return Kind.PAIR if is_pair else Kind.STREAM


def only_reads(problem: Problem) -> bool:
    """Whether the limit is a reading, and not a copy or a stream that writes too."""
    return problem.limit == Limit.READ


def _read_bytes(problem: Problem) -> int:
    """Return the bytes that a limit reads: of matrices, but not of what is a few numbers a row."""
    return problem.elements_read * problem.dtype.itemsize


def _written_bytes(problem: Problem) -> int:
    """Return the bytes that a limit writes, likewise."""
    output = problem.rows * problem.cols * problem.output_dtype.itemsize
    return 0 if only_reads(problem) else output


def is_plain_copy(problem: Problem) -> bool:
    """Whether a copy moves as many bytes: one matrix is read, and as much is written."""
    one_matrix = not problem.operator.is_gradient and not problem.mask_rows
    return one_matrix and _read_bytes(problem) == _written_bytes(problem)


def limit_shapes(problem: Problem) -> list[LimitShape]:
    """All shapes of a problem's limit, without their variations.

    Blocks that wait for what they load moved 20 MB in 3 to 6 % less time than any others on an H200
    and an H100, with 12 words of 16 bytes for each of 80 or 96 threads. A reading waits for all of
    its loads anyway. Blocks that stride over the matrix, a few an SM, took 0.7 to 15 % more time
    for it than one block a share on an H200, and kernels that read row by row took up to 5 % more:
    these are for masks alone.
    """
    kind = contiguous_kind(problem)
    if only_reads(problem):
        sizes = product((16,), (1, 2, 4, 8), (128, 256))
        by_row = row_shapes(problem) if _hides_of_rows(problem) else []
        shapes = [*(LimitShape(kind, *size) for size in sizes), *by_row]
        return [replace(shape, stores=False) for shape in shapes]
    sizes = product((8, 16), (1, 2, 4, 8), (64, 128, 256, 512, 1024))
    waiting = product((16,), (2, 4, 8, 12), (64, 80, 96, 128, 160, 256, 512))
    return [
        *(LimitShape(kind, *size) for size in sizes),
        *(LimitShape(kind, *size, waits=1) for size in waiting),
        *row_shapes(problem),
    ]


_MOST_THREADS = 512
"""Of a block whose threads hold more than 128 bytes each: so they have the registers for that."""

_MOST_HELD_BYTES = 256
_ROW_UNROLLS = (1, 2, 4, 8, 16, 32, 64)

_ROW_BLOCKS = (32, 64, 128, 256, 512)
"""Threads of a block that moves several rows."""


FEW_ROWS = 16
"""Fewer than these would be moved by so few blocks that a copy is much faster."""


SHORT_ROW_BYTES = 256
"""A row of so few bytes, at most, is moved in about the time in which its addresses are worked
out."""

_GROUPS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Threads that share a row, in a kernel that is fitted to its rows."""


def row_shapes(problem: Problem) -> list[LimitShape]:
    """Return shapes that move a row by fewer and fewer threads, which hold more and more of it.

    None where rows are few. Under a causal mask also the last rows first, which are the longest: so
    kernels take them as well, and would take less time than a limit that ends with them.
    """
    if problem.rows < FEW_ROWS:
        return []
    shapes = _fitted_shapes(problem) if _is_fitted(problem) else []
    if problem.mask is not Mask.NONE or not shapes:
        shapes += _shapes_of_any_threads(problem)
    orders = (False, True) if problem.mask is Mask.CAUSAL else (False,)
    return [replace(one, last_first=last_first) for one in shapes for last_first in orders]


def _hides_of_rows(problem: Problem) -> bool:
    """Whether a mask shows a part of each row of a matrix; of a cache all counts as read."""
    return problem.mask is not Mask.NONE and not problem.attends


def _is_fitted(problem: Problem) -> bool:
    """Whether a limit that moves rows is fitted to them, as softmax kernels are.

    Under a mask, or where rows are short, one that takes their length as an argument is slower than
    a softmax by up to 3 % on an H200. Elsewhere it is as fast, and its text, which all problems of
    a type share, is compiled once.
    """
    return _hides_of_rows(problem) or problem.row_bytes <= SHORT_ROW_BYTES


def _fitted_shapes(problem: Problem) -> list[LimitShape]:
    """Shapes whose threads hold just as many words as there are in a row; none for long rows."""
    word, most = row_word_bytes(problem), _row_words(problem)
    held = word * len(_streamed_bytes(problem))
    found = []
    for group in _GROUPS:
        unroll = -(-most // group)
        if group < 2 * most and unroll * held <= _MOST_HELD_BYTES:
            several = _ROW_BLOCKS if group & (group - 1) == 0 else ()
            blocks = dict.fromkeys([group, *several] if group >= WARP else several)
            found += [
                LimitShape(Kind.ROWS, word, unroll, threads, group, is_fitted=True)
                for threads in blocks
                if threads >= group
            ]
    return found


def _shapes_of_any_threads(problem: Problem) -> list[LimitShape]:
    """Return shapes whose number of threads a row is an argument.

    These are a power of two, of which a block may have several; the whole warps that the row
    needs; and a third more, of which each holds less.
    """
    word, most = row_word_bytes(problem), _row_words(problem)
    found: dict[LimitShape, None] = {}
    for unroll in row_unrolls(problem):
        needed = -(-most // unroll)
        rounded = min(1 << (needed - 1).bit_length(), _MOST_THREADS)
        blocks = [(max(rounded, threads), rounded) for threads in _ROW_BLOCKS]
        for wanted in (needed, 4 * needed // 3):
            whole_warps = min(-(-wanted // WARP) * WARP, _MOST_THREADS)
            blocks.append((whole_warps, whole_warps))
        found |= {LimitShape(Kind.ROWS, word, unroll, *block): None for block in blocks}
    return list(found)


def _row_words(problem: Problem) -> int:
    """Words of a row, of the longer one of those that are read and written."""
    longer = max(problem.row_bytes, _written_bytes(problem) // problem.rows)
    return longer // row_word_bytes(problem)


def row_word_bytes(problem: Problem) -> int:
    """Return the widest word of which every row is a whole number, so that every row is aligned."""
    sizes = problem.row_bytes, _written_bytes(problem) // problem.rows
    return next(word for word in (16, 8, 4, 2) if not any(size % word for size in sizes))


def row_unrolls(problem: Problem) -> list[int]:
    """Words that a thread holds at once, of one matrix or of each of two."""
    held = row_word_bytes(problem) * len(_streamed_bytes(problem))
    return [unroll for unroll in _ROW_UNROLLS if unroll * held <= _MOST_HELD_BYTES]


def _streamed_bytes(problem: Problem) -> dict[str, int]:
    """Return the bytes that a limit reads of each operand: matrices, or keys and values, and masks.

    There are two at most.
    """
    operator, size = problem.operator, problem.dtype.itemsize
    masked = {"mask": problem.mask_rows * problem.cols} if problem.mask is Mask.ADDITIVE else {}
    names = operator.matrices or operator.caches
    each = (problem.elements_read - sum(masked.values())) // len(names)
    return {name: size * count for name, count in {**dict.fromkeys(names, each), **masked}.items()}


def _second(problem: Problem) -> str:
    """Return the operand that a limit reads beside the first one, or none."""
    _, *others = _streamed_bytes(problem)
    return others[0] if others else ""


# ------------------------------------------------------------------ source


KERNELS_OF_A_TEXT = 6
"""Kernels of a limit that are compiled together, at most. Whatever is measured waits for the text
that takes longest: of a softmax of 4096 columns 0.3 s by 22 texts, where four texts took 0.9 s, and
under a causal mask 0.5 instead of 3.0 s. On one core the many take 9 to 20 % more time in all."""


def limit_sources(problem: Problem) -> list[str]:
    """CUDA C++ of every shape of a problem's limit, in all variations, as many small texts.

    What moves the matrices from end to end, and what moves rows, have texts for words of each size.
    """
    kinds: dict[tuple[bool, int], dict[str, LimitShape]] = {}
    for one in chain.from_iterable(shape.variations() for shape in limit_shapes(problem)):
        kinds.setdefault((one.kind is Kind.ROWS, one.word_bytes), {})[one.entry] = one
    sources = []
    for kernels in map(list, map(dict.values, kinds.values())):
        texts = -(-len(kernels) // KERNELS_OF_A_TEXT)
        # Variations of a shape follow each other: each text gets some of the longest kernels.
        sources += [_source(problem, kernels[first::texts]) for first in range(texts)]
    return sources


def _source(problem: Problem, kernels: list[LimitShape]) -> str:
    parts = {Kind.STREAM: "streams", Kind.ROWS: "rows"}
    macros = {
        "ITEM_BYTES": problem.dtype.itemsize,
        "MASKED": f"k{problem.mask.name.title()}",
        "SECOND": str(bool(_second(problem))).lower(),
        "READS": str(only_reads(problem)).lower(),
        **_extents(problem),
    }
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in macros.items()),
            source_part("hints"),
            source_part(parts.get(kernels[0].kind, "copies")),
            *(kernel.instance for kernel in kernels),
        ]
    )


def _extents(problem: Problem) -> dict[str, str]:
    """Return where rows.cu finds the extents of rows and of their mask.

    In a limit that is fitted to its rows they stand in the text, as in kernels whose `static_cols`
    is set; elsewhere they are arguments. Only where a mask repeats is a row's place in it found by
    a division, which takes some 35 instructions, and which kernels have for the same masks alone.
    """
    repeats = 0 < problem.mask_rows < problem.rows
    mask = {
        "MASK_ROWS": f"{problem.mask_rows}LL",
        "MASK_ROW(row)": "((row) % MASK_ROWS)" if repeats else "(row)",
    }
    if not _is_fitted(problem):
        return mask | {name.upper(): f"m.{name}" for name in ("cols", "in_words", "out_words")}
    return mask | {
        "COLS": f"{problem.cols}",
        "IN_WORDS": f"static_cast<int>({problem.row_bytes} / sizeof(Word))",
        "OUT_WORDS": f"static_cast<int>({_written_bytes(problem) // problem.rows} / sizeof(Word))",
    }


def tools_sources(problem: Problem) -> tuple[str, ...]:
    """CUDA C++ that fills inputs and checks an output, then what the limit moves bytes by."""
    return *check_sources(problem), *limit_sources(problem)


# ------------------------------------------------------------------ the fastest


Enqueue = Callable[[int], None]
Sampler = Callable[[Enqueue, int], list[float]]
"""Times launches: (what enqueues one, how many samples) to microseconds a launch."""

VARIED_SAMPLES = 3
SAMPLES = 15
VARIED_SHAPES = 4
"""Of those that move rows, and of the others: the best of both are timed in all variations. Which
is best is not known by one sample of each: at 4096 x 4096 f32 under a causal mask, two missed one
that takes 0.7 % less time on an H200."""

FINALISTS = 4
BY_DRIVER = "cuMemcpyDtoDAsync"

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int


class Rows(ctypes.Structure):
    """As in rows.cu: what a launch moves."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input", "second", "lengths", "output")),
        ("rows", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("cols", "in_words", "out_words")),
        *((name, ctypes.c_int) for name in ("threads_per_row", "row_shift", "block_rows")),
        *((name, ctypes.c_int) for name in ("last_first", "waits")),
    ]


class Limits:
    """What moves a problem's bytes and computes nothing, in many shapes.

    A plain copy, the driver's among them, where one matrix is read and as much is written; a plain
    reading where the limit is one; else a stream that reads and writes as many bytes as the problem
    does. But for a reading without a mask, also what moves
    them row by row, as a softmax does: on an H200 that took 10 % less time than a stream under a
    causal mask, and on an H100 3 % less than a copy for 3000 rows of 1500 f32.
    """

    def __init__(self, tools: Tools, sets: RotatingBuffers) -> None:
        self._tools = tools
        self._sets = sets
        self._problem = sets.problem
        self._kind = contiguous_kind(self._problem)

    def rough(self, index: int) -> None:
        """Enqueue some limit of set `index`, about as fast as any: how long does a launch take?"""
        self._enqueue(LimitShape(self._kind, word_bytes=16, unroll=4, threads=256), index)

    def fastest(self, sample: Sampler) -> list[tuple[str, Enqueue, list[float]]]:
        """Return the fastest limits, best first: name, how to enqueue it, samples.

        The driver's copy is among them where it moves as many bytes.

        The limit is itself the winner of a search, as every softmax beside it is: all shapes once,
        then the best in all variations, then the best of those once more.
        """
        shapes = limit_shapes(self._problem)
        first = {varied: shape for shape in shapes for varied in shape.first_variations()}
        timed = {shape: self._median(shape, sample, 1) for shape in first}
        ranked = list(dict.fromkeys(first[one] for one in sorted(timed, key=lambda s: timed[s])))
        for by_row in (False, True):
            alike = [shape for shape in ranked if (shape.kind is Kind.ROWS) == by_row]
            for varied in chain.from_iterable(s.variations() for s in alike[:VARIED_SHAPES]):
                timed[varied] = self._median(varied, sample)
        best = sorted(timed, key=lambda s: timed[s])[:FINALISTS]
        named: dict[str, Enqueue] = {str(s): partial(self._enqueue, s) for s in best}
        if self._kind is Kind.COPY:
            named[BY_DRIVER] = self._by_driver
        final = [(name, enqueue, sample(enqueue, SAMPLES)) for name, enqueue in named.items()]
        return sorted(final, key=lambda entry: median(entry[2]))

    def _median(self, shape: LimitShape, sample: Sampler, count: int = VARIED_SAMPLES) -> float:
        return median(sample(partial(self._enqueue, shape), count))

    def _by_driver(self, index: int) -> None:
        target, source = self._sets.output(index), self._sets.input(index)
        size, stream = _written_bytes(self._problem), self._tools.stream
        checked(driver.cuMemcpyDtoDAsync(target, source, size, stream))

    def _enqueue(self, shape: LimitShape, index: int) -> None:
        """Launch a shape on set `index`. In place, it writes where the input is kept."""
        addresses = {**self._sets.at(index), "output": self._sets.output(index)}
        launch(self._tools, shape, self._problem, addresses)


def launch(tools: Tools, shape: LimitShape, problem: Problem, addresses: dict[str, int]) -> None:
    """Launch a limit's kernel on the operands at these addresses.

    A copy copies the first operand that the limit reads, or mixes it with the second; a reading
    reads it. A stream reads as many bytes as the problem reads of each, and writes as many as the
    limit writes. All round bytes up to whole words. Rows are moved as if there were no gaps between
    them, and each were contiguous.
    """
    types: tuple[Any, ...]
    streamed = _streamed_bytes(problem)
    if shape.kind is Kind.ROWS:
        rows = Rows(
            input=addresses["input"],
            second=addresses.get(_second(problem)),
            lengths=addresses.get("lengths"),
            output=addresses["output"],
            rows=problem.rows,
            cols=problem.cols,
            in_words=problem.row_bytes // shape.word_bytes,
            out_words=_written_bytes(problem) // problem.rows // shape.word_bytes,
            threads_per_row=shape.threads_per_row,
            row_shift=shape.row_shift,
            block_rows=shape.block_rows,
            last_first=shape.last_first,
            waits=shape.waits,
        )
        blocks = -(-problem.rows // shape.block_rows)
        tools.launch(shape.entry, blocks, shape.threads, (rows,), (None,))
        return
    written = -(-_written_bytes(problem) // shape.word_bytes)
    if shape.kind is Kind.STREAM:
        read = [(addresses[one], -(-size // shape.word_bytes)) for one, size in streamed.items()]
        nothing = [(0, 0)] * (2 - len(read))
        moved = [*read, *nothing, (addresses["output"], written)]
        words = max(size for _, size in moved)
        arguments, types = (*chain.from_iterable(moved),), (_POINTER, _LONG) * 3
    else:
        first, *others = streamed
        names = (first, *(others if shape.kind is Kind.PAIR else ()), "output")
        words = written or -(-streamed[first] // shape.word_bytes)
        arguments = (*(addresses[name] for name in names), words)
        types = (*(_POINTER for _ in names), _LONG)
    blocks = -(-words // (shape.threads * shape.unroll))
    tools.launch(shape.entry, blocks, shape.threads, (*arguments, shape.waits), (*types, _INT))
