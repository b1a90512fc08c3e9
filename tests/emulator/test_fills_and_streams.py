"""The explorer's own inputs, and the kernels that are a limit, executed on the emulator."""

from dataclasses import replace

import numpy as np
import pytest

from explorer.compile.compiler import Compiler
from explorer.devices.cuda.limits import (
    Kind,
    LimitShape,
    Rows,
    launch,
    limit_shapes,
    limit_sources,
    row_shapes,
)
from explorer.devices.cuda.tools import check_sources
from explorer.model.element import DType, IndexType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

ROWS, COLS = 64, 512


def without_instances(problem, kind):
    """Return the source of a kind of limit without its many kernels, to which a test adds one."""
    of_kind = f"{kind.upper()}({kind}_"
    lines = next(text for text in limit_sources(problem) if of_kind in text).splitlines()
    of_kernels = tuple(f"{kind.upper()}({kind}_" for kind in Kind)
    return "\n".join(line for line in lines if not line.startswith(of_kernels))


STREAM = without_instances(Problem(ROWS, COLS, mask=Mask.CAUSAL), Kind.STREAM)


@pytest.fixture
def filled(run, out):
    """What a fill makes: ROWS x COLS numbers."""
    fills, *_ = check_sources(Problem(ROWS, COLS))
    ptx = Compiler("sm_90").compile(fills).ptx

    def fill(entry, *cols, dtype=np.float32):
        size = ROWS * COLS
        into = out(size, dtype)
        arguments = into, np.int64(size), *cols, np.uint32(1)
        ran = run(ptx, *arguments, ptx=True, entry=entry, grid=9, block=256)
        assert not ran.findings, ran.text
        return ran["out0"].reshape(ROWS, COLS)

    return fill


def test_noise_is_normal_but_for_outliers(filled):
    noise = filled("fill_noise")
    outliers = noise > 4.5
    assert outliers.mean() == pytest.approx(1 / 512, rel=0.3)
    assert noise[~outliers].mean() == pytest.approx(0, abs=0.02)
    assert noise[~outliers].std() == pytest.approx(1, abs=0.02)


def test_a_gradients_input_is_what_the_forward_could_have_put_out(filled):
    softmax, log_softmax = (
        filled(f"fill_{op}", np.int32(COLS)) for op in ("softmax", "log_softmax")
    )
    assert softmax.min() > 0
    assert softmax.sum(axis=1).mean() == pytest.approx(1, abs=0.3)
    np.testing.assert_allclose(np.exp(log_softmax), softmax, rtol=1e-5)


def test_a_quarter_of_the_lengths_is_whole(filled):
    lengths = filled("fill_lengths", np.int32(COLS), dtype=np.int32)
    assert lengths.min() == 1 and lengths.max() == COLS
    assert (lengths == COLS).mean() == pytest.approx(1 / 4, abs=0.02)


@pytest.mark.parametrize("dtype", IndexType)
def test_ids_are_any_columns(run, out, dtype):
    fills, *_ = check_sources(Problem(ROWS, COLS, op=Op.LOG_PROB, ids_dtype=dtype))
    arguments = out(ROWS * COLS, dtype.numpy), np.int64(ROWS * COLS), np.int32(COLS), np.uint32(1)
    ptx = Compiler("sm_90").compile(fills).ptx
    ran = run(ptx, *arguments, ptx=True, entry="fill_ids", grid=9, block=256)
    assert not ran.findings, ran.text
    counts = np.bincount(ran["out0"], minlength=COLS)
    assert len(counts) == COLS and counts.min() > 20 and counts.max() < 120


WAITS = pytest.mark.parametrize("waits", [0, 1, 8], ids=["at once", "after one", "after eight"])


@pytest.mark.sampled(3)
@WAITS
@pytest.mark.parametrize("word", ["uint2", "uint4"])
@pytest.mark.parametrize(
    ("first", "second", "written"), [(1000, 0, 1000), (4096, 131, 77), (5, 3001, 3001), (1, 0, 1)]
)
def test_a_stream_reads_and_writes_each_word_once(run, out, word, first, second, written, waits):
    threads, unroll = 64, 2
    source = f"{STREAM}\nSTREAM(k, {word}, 1024, {unroll}, kPlain, kPlain)"
    size = 8 if word == "uint2" else 16
    rng = np.random.default_rng(0)
    ins = [rng.integers(1, 256, words * size, np.uint8) for words in (first, max(1, second))]
    to = out(written * size // 4)
    blocks = -(-max(first, second, written) // (threads * unroll))
    counts = (np.int64(words) for words in (first, second, written))
    arguments = (ins[0], next(counts), ins[1], next(counts), to, next(counts))
    ran = run(source, *arguments, np.int32(waits), grid=blocks, block=threads)
    assert not ran.findings, ran.text
    assert ran.counters.global_loads.bytes == (first + second) * size
    assert ran.counters.global_stores.bytes == written * size


class Launched:
    """What a limit's launch hands to the GPU, kept for the emulator."""

    def launch(self, entry, blocks, threads, arguments, types):
        self.grid, self.block, self.arguments = blocks, threads, arguments


BY_FIELDS = """
extern "C" __global__ void k(const void* in, const void* second, const int* lengths, void* out,
                             long long rows, int cols, int in_words,
                             int out_words, int threads_per_row, int row_shift, int block_rows,
                             int last_first, int waits) {
  move_rows<WORD, UNROLL, GROUP, SHIFT, Load::kPlain, Store::kPlain, Masked::MASKED, SECOND>(
      {in, second, lengths, out, rows, cols, in_words, out_words, threads_per_row,
       row_shift, block_rows, last_first, waits});
}
"""
"""The kernel that moves rows, which takes its pointers one by one: the emulator places them."""

ROW_PROBLEMS = [
    Problem(19, 70),
    Problem(19, 23),  # fitted to its rows, as those under a mask
    Problem(19, 371, DType.BF16),
    Problem(17, 40, DType.BF16, out_dtype=DType.F32),
    Problem(17, 33, mask=Mask.LENGTHS),
    Problem(18, 12, DType.F16, mask=Mask.CAUSAL, mask_rows=6),
    Problem(18, 12, DType.F16, mask=Mask.CAUSAL),
    Problem(18, 40, mask=Mask.CAUSAL, mask_rows=30),  # the rows that a longer mask begins with
    Problem(18, 34, mask=Mask.ADDITIVE, mask_rows=3),
    Problem(18, 34, mask=Mask.ADDITIVE, mask_rows=1),
    Problem(18, 34, mask=Mask.ADDITIVE, mask_rows=18),
    Problem(18, 34, op=Op.SOFTMAX_BACKWARD),
]


def operands_of(problem):
    """Return bytes of each operand that a problem reads, the lengths as numbers."""
    rng = np.random.default_rng(0)
    matrix = (problem.rows, problem.row_bytes)
    found = {"input": rng.integers(1, 256, matrix, np.uint8)}
    if problem.operator.is_gradient:
        found["grad"] = rng.integers(1, 256, matrix, np.uint8)
    if problem.mask is Mask.ADDITIVE:
        found["mask"] = rng.integers(1, 256, (problem.mask_rows, problem.row_bytes), np.uint8)
    if problem.mask is Mask.LENGTHS:
        found["lengths"] = rng.integers(-1, problem.cols + 2, problem.rows, np.int32)
    return found


def seen_bytes(problem, operands, word):
    """Return the bytes of the whole words of each row that a mask shows some element of."""
    row = np.arange(problem.rows)
    seen = np.full(problem.rows, problem.cols)
    if problem.mask is Mask.LENGTHS:
        seen = operands["lengths"].clip(0, problem.cols)
    if problem.mask is Mask.CAUSAL:
        seen = (row % problem.mask_rows + 1 + problem.cols - problem.mask_rows).clip(0)
    return -(-seen * problem.dtype.itemsize // word) * word


def moved(problem, operands, word):
    """Return the bytes that moving the rows leaves: what is read of each operand, mixed."""
    row = np.arange(problem.rows)
    shown = np.arange(problem.row_bytes) < seen_bytes(problem, operands, word)[:, None]
    found = np.where(shown, operands["input"], 0)
    if "grad" in operands:
        found = found ^ operands["grad"]
    if "mask" in operands:
        found = found ^ operands["mask"][row % problem.mask_rows]
    written = np.zeros((problem.rows, problem.written_bytes // problem.rows), np.uint8)
    both = min(found.shape[1], written.shape[1])
    written[:, :both] = found[:, :both]
    return written


def by_rows(run, out, problem, shape, operands):
    """Move the rows of a problem on the emulator, as a launch of its limit does."""
    launched = Launched()
    places = dict(zip(("input", "grad", "mask", "lengths", "output"), range(1, 6), strict=True))
    launch(launched, shape, problem, places)
    into = out(problem.written_bytes, np.uint8)
    given = {places[name]: values for name, values in operands.items()} | {5: into}
    (rows,) = launched.arguments
    pointers = (given.get(getattr(rows, name), np.int64(0)) for name, _ in Rows._fields_[:4])
    counts = (np.int32(getattr(rows, name)) for name, _ in Rows._fields_[5:])
    _, word, _, *parts = shape.instance.split(", ")[:6]
    kernel = BY_FIELDS.replace("WORD", word)
    for name, part in zip(("UNROLL", "GROUP", "SHIFT"), parts, strict=True):
        kernel = kernel.replace(name, part)
    source = without_instances(problem, Kind.ROWS) + kernel
    numbers = (np.int64(rows.rows), *counts)
    return run(source, *pointers, *numbers, grid=launched.grid, block=launched.block)


@pytest.mark.sampled(9)
@WAITS
@pytest.mark.parametrize("shape", [0, -1], ids=["many threads a row", "few threads a row"])
@pytest.mark.parametrize("problem", ROW_PROBLEMS, ids=str)
def test_rows_are_read_as_far_as_a_mask_shows_them_and_written_whole(
    run, out, problem, shape, waits
):
    shape, operands = replace(row_shapes(problem)[shape], waits=waits), operands_of(problem)
    ran = by_rows(run, out, problem, shape, operands)
    assert not ran.findings, ran.text
    expected = moved(problem, operands, shape.word_bytes)
    assert (ran["out0"].reshape(expected.shape) == expected).all()
    assert ran.counters.global_stores.bytes == problem.written_bytes


@WAITS
@pytest.mark.parametrize(("unroll", "threads"), [(2, 64), (8, 64), (12, 80)])
def test_two_matrices_are_mixed_word_by_word(run, out, waits, unroll, threads):
    problem = Problem(170, 50, op=Op.SOFTMAX_BACKWARD)
    shape, launched = LimitShape(Kind.PAIR, 16, unroll, threads, waits=waits), Launched()
    launch(launched, shape, problem, {"input": 1, "grad": 2, "output": 3})
    operands = operands_of(problem)
    arguments = (operands["input"], operands["grad"], out(problem.written_bytes, np.uint8))
    kernel = f"PAIR(k, uint4, 512, {unroll}, kPlain, kPlain)"
    source = f"{without_instances(problem, Kind.PAIR)}\n{kernel}"
    *_, words, told = launched.arguments
    numbers = np.int64(words), np.int32(told)
    ran = run(source, *arguments, *numbers, grid=launched.grid, block=launched.block)
    assert not ran.findings, ran.text
    assert launched.grid > 1 and words % (unroll * threads)
    assert (ran["out0"].reshape(170, -1) == operands["input"] ^ operands["grad"]).all()


@pytest.mark.parametrize("unroll, threads", [(12, 80), (2, 64)])
@pytest.mark.parametrize("rows", [61, 30])
def test_a_copy_that_waits_copies_all(run, out, unroll, threads, rows):
    problem = Problem(rows, 500)
    shape, launched = LimitShape(Kind.COPY, 16, unroll, threads, waits=1), Launched()
    launch(launched, shape, problem, {"input": 1, "output": 2})
    *_, words, told = launched.arguments
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, problem.written_bytes, np.uint8)
    kernel = f"COPY(k, uint4, 512, {unroll}, kPlain, kPlain)"
    source = f"{without_instances(problem, Kind.COPY)}\n{kernel}"
    into = out(problem.written_bytes, np.uint8)
    numbers = np.int64(words), np.int32(told)
    ran = run(source, data, into, *numbers, grid=launched.grid, block=launched.block)
    assert not ran.findings, ran.text
    assert (ran["out0"] == data).all()
    assert launched.grid == -(-words // (unroll * threads))


@pytest.mark.usefixtures("is_read")
@pytest.mark.parametrize(("unroll", "threads"), [(1, 256), (8, 128)])
@pytest.mark.parametrize("rows", [61, 30])
def test_a_reading_reads_all_and_stores_nothing(run, out, unroll, threads, rows):
    problem = Problem(rows, 501)
    shape, launched = LimitShape(Kind.READ, 16, unroll, threads, stores=False), Launched()
    launch(launched, shape, problem, {"input": 1, "output": 2})
    *_, words, never = launched.arguments
    assert (words, never) == (-(-problem.read_bytes // 16), 0)
    data = np.random.default_rng(0).integers(0, 256, words * 16, np.uint8)
    kernel = f"READ(k, uint4, 1024, {unroll}, kPlain, kPlain)"
    source = f"{without_instances(problem, Kind.READ)}\n{kernel}"
    arguments = data, out(16, np.uint8), np.int64(words), np.int32(never)
    ran = run(source, *arguments, grid=launched.grid, block=launched.block)
    assert [str(one.kind) for one in ran.findings] == ["never-written"], ran.text
    threads_in_all = launched.grid * launched.block
    assert ran.counters.global_loads.bytes == threads_in_all * unroll * 16
    assert 0 <= threads_in_all * unroll - words < launched.block * unroll
    assert ran.counters.global_stores.bytes == 0


@pytest.mark.usefixtures("is_read")
@pytest.mark.parametrize("problem", ROW_PROBLEMS[4:-1], ids=str)
def test_rows_are_read_as_far_as_a_mask_shows_them_and_nothing_is_stored(run, out, problem):
    shape, operands = row_shapes(problem)[0], operands_of(problem)
    ran = by_rows(run, out, problem, shape, operands)
    assert [str(one.kind) for one in ran.findings] == ["never-written"], ran.text
    seen = seen_bytes(problem, operands, shape.word_bytes)
    seen += problem.row_bytes if problem.mask is Mask.ADDITIVE else 0
    # Threads without a row read the last one too.
    none = -(-problem.rows // shape.block_rows) * shape.block_rows - problem.rows
    length = 4 * shape.threads_per_row if problem.mask is Mask.LENGTHS else 0
    expected = sum(seen) + none * seen[-1] + (problem.rows + none) * length
    assert ran.counters.global_loads.bytes == expected
    assert ran.counters.global_stores.bytes == 0


def test_a_reading_reads_the_matrix_and_no_ids():
    """They lie elsewhere: as many bytes more of the matrix would be beyond its end."""
    problem, launched = Problem(33, 501, op=Op.LOG_PROB, ids_per_row=300), Launched()
    shape = LimitShape(Kind.READ, 16, 4, 256, stores=False)
    launch(launched, shape, problem, {"input": 1, "output": 2})
    assert launched.arguments == (1, 2, -(-33 * 501 * 4 // 16), 0)


@pytest.mark.parametrize(("unroll", "threads"), [(1, 256), (8, 128)])
@pytest.mark.parametrize("more", [{}, {"mask": Mask.LENGTHS, "layout": "NHD", "also": "lse"}])
def test_a_reading_reads_all_keys_and_values(run, out, unroll, threads, more):
    problem = Problem(12, 33, DType.BF16, Op.DECODE_ATTENTION, group=2, key_heads=3, **more)
    (kind,) = {one.kind for one in limit_shapes(problem)}
    shape, launched = LimitShape(kind, 16, unroll, threads, stores=False), Launched()
    launch(launched, shape, problem, {"query": 1, "key": 2, "value": 3, "output": 4, "lengths": 5})
    words = 6 * 33 * 128 * 2 // 16
    assert launched.arguments == (2, words, 3, words, 4, 0, 0)
    data = [np.random.default_rng(0).integers(0, 256, words * 16, np.uint8) for _ in range(2)]
    kernel = f"STREAM(k, uint4, 1024, {unroll}, kPlain, kPlain)"
    source = f"{without_instances(problem, Kind.STREAM)}\n{kernel}"
    given = data[0], np.int64(words), data[1], np.int64(words), out(16, np.uint8), np.int64(0)
    ran = run(source, *given, np.int32(0), grid=launched.grid, block=launched.block)
    assert [str(one.kind) for one in ran.findings] == ["never-written"], ran.text
    assert ran.counters.global_loads.bytes == problem.elements_read * 2
    assert ran.counters.global_stores.bytes == 0
