"""The explorer's own GPU code compiles for every kind of problem; no GPU is needed."""

from dataclasses import replace

import pytest

from explorer.compile.compiler import Compiler
from explorer.devices.cuda import limits
from explorer.devices.cuda.limits import (
    Kind,
    LimitShape,
    contiguous_kind,
    limit_shapes,
    limit_sources,
    row_shapes,
    row_word_bytes,
    tools_sources,
)
from explorer.devices.cuda.tools import check_entry
from explorer.evaluate.profile import sass_of
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem, results
from explorer.ops import Op

KINDS = [
    *(Problem(64, 64, dtype) for dtype in DType),
    Problem(64, 64, DType.BF16, out_dtype=DType.F32),
    Problem(64, 63, DType.F32, out_dtype=DType.F16),
    Problem(64, 63, DType.F16, Op.SOFTMAX_BACKWARD),
    Problem(64, 66, DType.BF16, mask=Mask.LENGTHS),
    Problem(64, 64, mask=Mask.CAUSAL),
    Problem(64, 65, mask=Mask.ADDITIVE),
]

FILLS = {"fill_noise", "fill_softmax", "fill_log_softmax", "fill_lengths"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", KINDS, ids=str)
def test_they_compile(problem):
    """The first kind to machine code; the rest have the same instructions, of other types."""
    compiler = Compiler("sm_90" if problem == KINDS[0] else "compute_90")
    kernels = [compiler.compile(source) for source in tools_sources(problem)]
    assert problem != KINDS[0] or all(kernel.cubin for kernel in kernels)
    varied = {one.entry for shape in limit_shapes(problem) for one in shape.variations()}
    checks = {check_entry(result.dtype) for result in results(problem)}
    for name in varied | checks | {"write_truths"} | FILLS:
        assert sum(f".entry {name}(" in kernel.ptx for kernel in kernels) == 1, name


def test_a_plain_copy_is_the_limit_where_one_matrix_is_read_and_as_much_written():
    assert contiguous_kind(Problem(64, 64, scale=2.0)) is Kind.COPY
    assert contiguous_kind(Problem(64, 64, DType.BF16, out_dtype=DType.F16)) is Kind.COPY
    assert contiguous_kind(Problem(64, 64, DType.BF16, out_dtype=DType.F32)) is Kind.STREAM
    assert contiguous_kind(Problem(64, 64, op=Op.LOG_SOFTMAX_BACKWARD)) is Kind.PAIR
    assert contiguous_kind(Problem(64, 64, mask=Mask.CAUSAL)) is Kind.STREAM


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        (Problem(64, 64), 16),
        (Problem(64, 1502), 8),
        (Problem(64, 1501), 4),
        (Problem(64, 1501, DType.BF16), 2),
        (Problem(64, 1501, DType.BF16, out_dtype=DType.F32), 2),
        (Problem(64, 1500, DType.F32, out_dtype=DType.F16), 8),
    ],
    ids=str,
)
def test_rows_are_moved_by_the_widest_words_that_leave_each_aligned(problem, word):
    assert row_word_bytes(problem) == word


def test_rows_are_moved_by_a_warp_by_a_block_and_by_a_thread():
    def shared_out(problem):
        return {(one.threads_per_row, one.unroll) for one in row_shapes(problem)}

    assert {(32, 64), (512, 4)} <= shared_out(Problem(3000, 1501))
    assert {(256, 4), (64, 16)} <= shared_out(Problem(4096, 4096))
    assert (1, 4) in shared_out(Problem(4096, 16))


@pytest.mark.parametrize("problem", KINDS, ids=str)
def test_a_block_holds_whole_rows_and_a_thread_what_its_registers_do(problem):
    for shape in row_shapes(problem):
        assert shape.threads % shape.threads_per_row == 0
        for one in (shape, *shape.variations()):
            assert one.word_bytes * one.unroll <= 256


def test_rows_are_also_moved_by_whole_warps_and_by_narrower_words():
    shapes = {(s.threads, s.threads_per_row, s.unroll) for s in row_shapes(Problem(3218, 1344))}
    assert {(96, 96, 4), (128, 128, 4), (352, 352, 1)} <= shapes
    assert (192, 192, 8) in {
        (s.threads, s.threads_per_row, s.unroll) for s in row_shapes(Problem(1056, 4096))
    }
    varied = row_shapes(Problem(2112, 2048))[0].variations()
    assert {(s.word_bytes, s.unroll, s.waits) for s in varied} == {
        (word, unroll, waits) for word, unroll in ((16, 1), (8, 2)) for waits in (0, 1, 8)
    }
    assert len({str(one) for one in varied}) == len(varied) == 24


def test_under_a_causal_mask_the_longest_rows_are_moved_first_as_well():
    causal = row_shapes(Problem(64, 64, mask=Mask.CAUSAL))
    assert {one.last_first for one in causal} == {False, True}
    assert len({str(one) for one in causal}) == len(causal)
    assert not any(one.last_first for one in row_shapes(Problem(64, 64, mask=Mask.LENGTHS)))


@pytest.mark.parametrize(
    ("problem", "is_fitted"),
    [
        (Problem(50_000, 24), {True}),
        (Problem(20_000, 50, DType.BF16, Op.SOFTMAX_BACKWARD), {True}),
        (Problem(55_924, 300, DType.BF16, mask=Mask.LENGTHS), {True, False}),
        (Problem(64, 300_000, mask=Mask.CAUSAL, mask_rows=64), {False}),
        (Problem(4096, 4096), {False}),
    ],
    ids=str,
)
def test_rows_that_are_short_or_masked_are_moved_by_kernels_made_for_them(problem, is_fitted):
    shapes = row_shapes(problem)
    assert {one.is_fitted for one in shapes} == is_fitted
    words = problem.row_bytes // row_word_bytes(problem)
    for one in shapes:
        if one.is_fitted:  # each thread has as many words as there are for it, and none more
            assert one.unroll == -(-words // one.threads_per_row)
            assert f", {one.threads_per_row}, {one.row_shift}, k" in one.instance
            assert one.threads >> one.row_shift in (0, one.threads // one.threads_per_row)
    by_entry = {}
    for one in shapes:
        by_entry.setdefault(one.entry, set()).add(one.instance)
    assert all(len(instances) == 1 for instances in by_entry.values())


def one_kernel(problem, shape):
    """Compile one kernel of a limit."""
    (text,) = (text for text in limit_sources(problem) if shape.instance in text.splitlines())
    macro = shape.instance.partition("(")[0] + "("
    others = [line for line in text.splitlines() if not line.startswith(macro)]
    return Compiler("sm_90").compile("\n".join([*others, shape.instance]))


def machine_code(problem, shape):
    """Return the instructions of one kernel of a limit."""
    return sass_of(one_kernel(problem, shape).cubin)


@pytest.mark.parametrize(
    ("op", "registers"), [(Op.SOFTMAX, 64), (Op.SOFTMAX_BACKWARD, 72)], ids=str
)
def test_a_thread_that_copies_twelve_words_leaves_room_for_other_blocks(op, registers):
    """Of 81 registers, the fastest copy of 20 MB took 5 to 8 % more time on two GPUs."""
    problem = Problem(100, 50257, op=op)
    shape = next(one for one in limit_shapes(problem) if one.unroll == 12)
    assert one_kernel(problem, shape).resources.registers <= registers


def fitted(problem, word_bytes, threads_per_row):
    """Return a shape that is made for a problem's rows."""
    varied = (one for shape in row_shapes(problem) for one in shape.variations())
    return next(
        one
        for one in varied
        if (one.word_bytes, one.threads_per_row) == (word_bytes, threads_per_row) and one.is_fitted
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads_per_row", [2, 8])
def test_a_warp_waits_for_its_loads_in_machine_code_too(threads_per_row):
    """The compiler dropped an exchange whose result was not needed."""
    problem = Problem(8000, 48, DType.BF16, Op.LOG_SOFTMAX_BACKWARD)
    lines = machine_code(problem, fitted(problem, 16, threads_per_row))
    exchange, *others = (place for place, line in enumerate(lines) if "SHFL" in line)
    loads = [place for place, line in enumerate(lines) if "LDG" in line]
    stores = [place for place, line in enumerate(lines) if "STG" in line]
    assert not others and max(loads) < exchange < min(stores)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads_per_row", [2, 4])
def test_a_copy_that_does_not_wait_may_store_before_all_loads_are_there(threads_per_row):
    """What would wait for them is worked out only where the copy is told to wait."""
    problem = Problem(8000, 48, DType.BF16, Op.LOG_SOFTMAX_BACKWARD)
    for shape in (fitted(problem, 16, threads_per_row), LimitShape(Kind.PAIR, 16, 4, 256)):
        lines = machine_code(problem, shape)
        last = max(place for place, line in enumerate(lines) if "LDG" in line)
        branch = next(place for place, line in enumerate(lines) if place > last and "BRA" in line)
        assert not any("LOP3" in line for line in lines[last:branch]), lines


@pytest.mark.exhaustive
def test_addresses_of_few_words_and_short_rows_depend_on_no_comparison():
    """Else they are read after it, and few rows take 2 % more time."""
    pair = LimitShape(Kind.PAIR, 8, 1, 256)
    for problem, shape in (
        (few := Problem(118, 4, op=Op.LOG_SOFTMAX_BACKWARD), pair),
        (few, fitted(few, 16, 1)),
        (wide := Problem(8000, 48, DType.BF16, Op.LOG_SOFTMAX_BACKWARD), fitted(wide, 16, 4)),
    ):
        loads = [line for line in machine_code(problem, shape) if "LDG" in line]
        assert sum(not line.lstrip().startswith("@") for line in loads) == 2, loads


def test_a_shape_that_is_fastest_as_it_waits_is_found():
    """Even if it is among the slowest where it does not."""
    problem = Problem(4096, 4096, mask=Mask.LENGTHS)
    fast = replace(row_shapes(problem)[-1], waits=8, load_hint="cs", store_hint="cs")

    def us(shape=None, *_):
        if shape is None or not shape.waits or replace(shape, waits=8) != fast:
            return 11.4 if shape is None or shape.waits else 11.3
        return 10.9 if shape == fast else 11.0

    (name, _, samples), *_ = Timed(problem, us).fastest()
    assert name == str(fast) and set(samples) == {10.9}


class Timed(limits.Limits):
    """Limits that take what a test says, in place of a GPU."""

    def __init__(self, problem, us):
        self._problem, self._kind, self._us = problem, contiguous_kind(problem), us

    def fastest(self):
        return super().fastest(
            lambda enqueue, count: [self._us(*getattr(enqueue, "args", ()))] * count
        )

    def _by_driver(self, index):
        raise AssertionError("it is not launched here")


@pytest.mark.parametrize("hints", [("default", "default"), ("no-allocate", "cs")])
def test_the_limit_is_found_also_where_a_shape_is_fast_with_other_hints_alone(hints):
    fast = LimitShape(Kind.COPY, 16, 4, 256, load_hint=hints[0], store_hint=hints[1])

    def us(shape=None, *_):
        if shape == fast:
            return 9.6
        if shape is not None and replace(shape, load_hint="cs", store_hint="cs") == replace(
            fast, load_hint="cs", store_hint="cs"
        ):
            return 9.7 if shape.store_hint == "cs" else 10.5
        return 10.0

    (name, _, samples), *_ = Timed(Problem(2112, 2048), us).fastest()
    assert name == str(fast) and set(samples) == {9.6}


def test_the_limit_is_found_also_where_it_waits_for_its_loads():
    fast = LimitShape(Kind.COPY, 16, 12, 80, waits=1, load_hint="no-allocate", store_hint="cs")

    def us(shape=None, *_):
        if shape is None or not shape.waits or shape.unroll != 12:
            return 11.4
        return 10.9 if shape == fast else 11.0

    (name, _, samples), *_ = Timed(Problem(100, 50257), us).fastest()
    assert name == str(fast) and set(samples) == {10.9}


def test_few_rows_are_not_moved_by_row():
    assert not row_shapes(Problem(15, 2**20)) and row_shapes(Problem(16, 2**20))


@pytest.mark.usefixtures("is_read")
def test_where_little_is_written_the_limit_reads_and_stores_nothing():
    problem = Problem(8192, 4096)
    assert contiguous_kind(problem) is Kind.READ
    assert contiguous_kind(Problem(64, 64, mask=Mask.ADDITIVE)) is Kind.STREAM
    assert contiguous_kind(Problem(64, 64, op=Op.LOG_PROB)) is Kind.READ
    shapes = limit_shapes(problem)
    assert {shape.kind for shape in shapes} == {Kind.READ}
    assert "1 x 16 bytes a thread, 256 threads" in map(str, shapes)
    by_rows = limit_shapes(Problem(64, 65, mask=Mask.LENGTHS))
    assert {shape.kind for shape in by_rows} == {Kind.READ, Kind.ROWS}
    for shape in (*shapes, *by_rows):
        assert not shape.stores and {one.waits for one in shape.variations()} == {0}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("is_read")
def test_what_is_read_is_loaded_in_machine_code_too():
    """The compiler drops loads whose result can change nothing."""
    for unroll in (1, 8):
        shape = LimitShape(Kind.READ, 16, unroll, 256, stores=False)
        lines = machine_code(Problem(64, 64), shape)
        assert sum("LDG.E.128" in line for line in lines) == unroll, lines
    problem = Problem(8000, 24, mask=Mask.LENGTHS)  # of six words of 16 bytes a row
    for shape in (one for one in limit_shapes(problem) if one.is_fitted and one.unroll == 3):
        assert sum("LDG.E.128" in line for line in machine_code(problem, shape)) == 3


@pytest.mark.usefixtures("is_read")
@pytest.mark.parametrize(
    "problem", [Problem(64, 63, DType.BF16), Problem(64, 65, mask=Mask.CAUSAL)], ids=str
)
def test_readings_compile(problem):
    compiler = Compiler("compute_90")
    kernels = [compiler.compile(source) for source in limit_sources(problem)]
    varied = {one.entry for shape in limit_shapes(problem) for one in shape.variations()}
    for name in varied:
        assert sum(f".entry {name}(" in kernel.ptx for kernel in kernels) == 1, name


@pytest.mark.usefixtures("is_read")
def test_the_fastest_reading_is_found():
    fast = LimitShape(Kind.READ, 16, 1, 256, load_hint="no-allocate", stores=False)
    timed = Timed(Problem(1024, 2048), lambda shape: 5.3 if shape == fast else 5.4)
    (name, _, samples), *_ = timed.fastest()
    assert name == "1 x 16 bytes a thread, 256 threads, load no-allocate"
    assert set(samples) == {5.3}
