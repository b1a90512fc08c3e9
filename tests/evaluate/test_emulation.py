"""Checks without a GPU: which problems a program is run on, and what comes of it."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from explorer.devices.emulated.emulator import Emulator, Verdict
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import MOST_ELEMENTS, MOST_STRIDES, emulated_runs, striding_run
from explorer.devices.verdict import Emulation, Status
from explorer.evaluate.verify import check_finalists, verify_many
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput, WrongKernel
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.ops.truth import Truth
from explorer.reference.check import Check, check
from explorer.reference.layout import first_elements
from explorer.reference.patterns import patterns_for
from explorer.report import verification

RUN_TIME = Config(cache="none", cache_holds="input", static_cols=False)
SHARED = Config(cache="shared", cache_holds="input", static_cols=False)


@pytest.fixture(scope="module")
def emulator():
    return Emulator("sm_90")


def program(config=None, cols=512, dtype=DType.F32, **changes):
    return ProgramUnderTest.of_config(
        Problem(1, cols, dtype), replace(config or Config(threads_per_row=32), **changes)
    )


def shapes(verdict):
    """Columns and alignment of the runs near block 0."""
    return [(run.problem.cols, run.misaligned_by) for run in verdict.runs if not run.elements]


@pytest.mark.parametrize("cols", [1, 37, 1000, 4096, 4097, 65536])
@pytest.mark.parametrize("rows_per_block", [1, 2, 8, 32])
def test_rows_make_more_than_a_block_and_a_part_of_one(cols, rows_per_block):
    tested = program(cols=cols, threads=32 * rows_per_block)
    problem = emulated_runs(tested)[0].problem
    assert problem.cols == cols and problem.rows > rows_per_block
    assert rows_per_block == 1 or problem.rows % rows_per_block
    assert problem.rows * cols <= MOST_ELEMENTS


@pytest.mark.parametrize("cols", [1, 37, 4096, 65536, 262144, 2**20])
def test_every_pattern_is_run_at_every_width(cols):
    """Of wide rows in several parts, which the memory holds one after the other."""
    runs = emulated_runs(program(cols=cols, threads=256, threads_per_row=256))
    own = [run.case for run in runs if run.problem.cols == cols and not run.misaligned_by]
    first = own[0]
    known = patterns_for(Problem(1, cols), first.shares, keeps_small=first.keeps_small)
    met = {pattern.name for case in own for pattern in case.patterns}
    assert met == {pattern.name for pattern in known}
    assert all(case.problem.rows * cols <= MOST_ELEMENTS for case in own)


@pytest.mark.parametrize(("threads", "threads_per_row", "cols"), [(768, 4, 65536), (128, 2, 50257)])
def test_a_block_of_too_many_elements_is_run_whole_at_fewer_columns(threads, threads_per_row, cols):
    tested = program(
        cols=cols, threads=threads, threads_per_row=threads_per_row, static_cols=False, cache="none"
    )
    problems = [run.problem for run in emulated_runs(tested)]
    assert all(problem.rows * problem.cols <= MOST_ELEMENTS for problem in problems)
    assert problems[0].cols == cols
    block = threads // threads_per_row
    few = [problem.rows for problem in problems if problem.cols < 100]
    assert {1, 2, block, 2 * block, block + 2} <= set(few)


def test_rows_of_one_block_and_of_two_are_run():
    rows = [run.problem.rows for run in emulated_runs(program(threads=128, threads_per_row=32))]
    assert {1, 2, 4, 5, 6, 7, 8} <= set(rows)


@pytest.mark.parametrize("threads_per_row", [4, 224])
def test_over_a_middle_axis_no_run_is_beyond_the_memory(threads_per_row):
    """Also where the kernel is told more columns than its own: there are three slices at least."""
    config = replace(RUN_TIME, threads=224, threads_per_row=threads_per_row)
    tested = ProgramUnderTest.of_config(Problem(8192, 4097, inner=64), config)
    problems = [run.problem for run in emulated_runs(tested)]
    fewest = 9 * tested.split.rows_together  # three slices of three groups of neighbours
    assert all(p.rows * p.cols <= MOST_ELEMENTS or p.rows == fewest for p in problems)
    widest = max(problems, key=lambda problem: problem.cols)
    assert widest.cols > (2**16 if threads_per_row == 224 else 8192)
    assert widest.rows >= 3 * widest.inner and widest.inner > tested.split.rows_together


def test_a_static_kernel_is_run_at_its_own_cols(emulator):
    verdict = emulator.verify(program())
    assert verdict.status is Status.VERIFIED and set(shapes(verdict)) == {(512, 0)}
    assert verdict.by == "emulation for sm_90" and "error" in verdict.sentence


@pytest.mark.parametrize(("threads", "fewest"), [(32, {1, 2}), (128, {1, 2, 6, 7})])
def test_few_rows_are_run(threads, fewest):
    """One row and two; a block but for one row beside a whole one, and 2 rows beside one."""
    runs = emulated_runs(program(threads=threads))
    assert fewest <= {run.problem.rows for run in runs}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64])
def test_each_alignment_of_output_to_input_is_run(emulator, dtype):
    """As many as an access of 16 bytes has elements; that of equal alignment is the first run."""
    verdict = emulator.verify(program(cols=513, dtype=dtype))
    assert verdict.status is Status.VERIFIED
    width = 16 // dtype.itemsize
    assert set(shapes(verdict)) == {(513, offset) for offset in range(max(2, width))}


@pytest.mark.parametrize("name", ["grad", "output"])
def test_matrices_begin_at_each_distance_from_the_input(name):
    begun = [first_elements(Problem(1, 1), offset) for offset in range(1, 9)]
    assert {(at[name] - at["input"]) % 8 for at in begun} == set(range(8))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64])
@pytest.mark.parametrize("names", [("grad", "output"), ("output", "grad")])
def test_one_matrix_of_a_gradient_lies_as_the_input_does_and_the_other_does_not(dtype, names):
    problem = Problem(64, 513, dtype, Op.SOFTMAX_BACKWARD)
    runs = emulated_runs(ProgramUnderTest.of_config(problem, Config(threads_per_row=32)))
    begun = [first_elements(problem, run.misaligned_by) for run in runs if run.misaligned_by]
    width = 16 // dtype.itemsize
    apart = [[(at[name] - at["input"]) % width for name in names] for at in begun]
    assert any(first == 0 and second for first, second in apart)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("aligned", ["input", "grad"])
def test_one_matrix_of_a_gradient_alone_begins_aligned(dtype, aligned):
    problem = Problem(64, 513, dtype, Op.SOFTMAX_BACKWARD)
    runs = emulated_runs(ProgramUnderTest.of_config(problem, Config(threads_per_row=32)))
    begun = [first_elements(problem, run.misaligned_by) for run in runs if run.misaligned_by]
    width = 16 // dtype.itemsize
    starts = [[name for name in at if at[name] % width == 0] for at in begun]
    assert [aligned] in starts


@pytest.mark.exhaustive
def test_run_time_cols_are_run_beside_their_own(emulator):
    verdict = emulator.verify(program(RUN_TIME, cols=1001, threads_per_row=32))
    assert verdict.status is Status.VERIFIED
    tried = [cols for cols, _ in shapes(verdict)]
    assert {1001, 1000, 1002, 37, 1, 2 * 1001 + 1} <= set(tried) and max(tried) > 8 * 1001
    assert {cols % 4 for cols in tried if 128 <= cols < 256} == {0, 1, 2, 3}
    aligned = shapes(emulator.verify(program(RUN_TIME, cols=1000, threads_per_row=32)))
    assert {996, 36, 4, 2004} <= {cols for cols, _ in aligned}
    assert all(cols % 4 == 0 and not odd for cols, odd in aligned)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_run_time_cols_have_each_remainder_at_three_sizes(dtype):
    runs = emulated_runs(program(RUN_TIME, cols=1001, dtype=dtype, threads_per_row=64))
    tried = {run.problem.cols for run in runs}
    width = 16 // dtype.itemsize
    sizes = (lambda n: 60 < n < 512, lambda n: 256 < n < 2000, lambda n: 8000 < n < 12000)
    for of_a_size in sizes:
        found = [n for n in tried if of_a_size(n)]
        assert {n % width for n in found} == set(range(width))
        assert len({n // width for n in found}) >= width  # as many numbers of vectors


def test_blocks_that_stride_do_so_many_times():
    striding = Config(threads=128, threads_per_row=128, persistent=2)
    tested = program(striding, cols=1024)
    run = striding_run(tested, 1000)
    assert run is not None and run.problem.rows == 2 * MOST_STRIDES + 1
    fewer = striding_run(tested, 50)
    assert fewer is not None and fewer.problem.rows == 2 * 50 + 1
    assert striding_run(tested, 20) is None
    assert striding_run(program(cols=1024), 1000) is None
    wide = striding_run(program(striding, cols=16384), 1000)
    assert wide is not None and wide.problem.rows * 16384 <= MOST_ELEMENTS


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Problem(9, 64, scale=0.3), [("scale", (0.3, 0.0, *DType.F32.trials.scales))]),
        (Problem(9, 64, input_stride=80), [("input_stride", (80, 64, 144 + 2**16))]),
        (Problem(12, 64, mask=Mask.ADDITIVE, mask_rows=4), [("mask_rows", None)]),
        (Problem(12, 64, mask=Mask.CAUSAL), [("mask_rows", None)]),
        (Problem(60, 64, inner=20), [("inner", None)]),
    ],
    ids=str,
)
def test_run_time_arguments_are_run_at_two_values_and_an_edge(problem, told):
    tested = ProgramUnderTest.of_config(problem, Config(threads_per_row=32, cache_holds="input"))
    runs = emulated_runs(tested)
    for name, values in told:
        tried = {getattr(run.problem, name) for run in runs}
        assert len(tried) >= 3 if values is None else tried >= set(values)


def test_a_thorough_check_tries_each_scale_that_needs_no_multiplication():
    tested = ProgramUnderTest.of_config(Problem(9, 64, scale=0.3), Config(threads_per_row=32))
    for thorough, most in ((True, 4), (False, 1)):
        runs = emulated_runs(replace(tested, thorough=thorough))
        assert len({run.problem.scale for run in runs} & {1.0, -1.0, 2.0, 0.5}) == most


def test_compile_errors_name_the_file(emulator):
    tested = replace(program(), file="mine.cu")
    broken = replace(tested, source=tested.source.replace("threadIdx.x", "nought"))
    assert "mine.cu(" in emulator.verify(broken).sentence


def test_shared_memory_follows_the_cols_as_the_host_code_has_it():
    tested = program(SHARED, cols=1001, threads_per_row=256)
    bytes_at = [tested.launches(Problem(4, c))[0].shared_bytes for c in (1000, 1001)]
    assert bytes_at == [(c + 6) // 4 * 16 for c in (1000, 1001)]
    with pytest.raises(InvalidInput, match="multiples of 4"):
        program(SHARED, cols=1000).launches(Problem(4, 999))


def test_a_race_is_found_with_its_line(emulator):
    tested = program(threads_per_row=256)
    raced = replace(tested, source=tested.source.replace("  __syncthreads();\n", "", 1))
    verdict = emulator.verify(raced)
    assert verdict.status is Status.WRONG and "shared-race" in verdict.sentence
    finding = verdict.deciding_run.findings[0]
    assert finding.source.file == "softmax.cu"
    assert "scratch" in raced.source.splitlines()[finding.source.line - 1]
    assert verdict.deciding_run.check.wrong == 0  # the numbers alone do not show it


def test_wrong_numbers_are_wrong(emulator):
    tested = program(threads_per_row=256)
    spoiled = tested.source.replace("+ i] * inverse_sum;", "+ i] * inverse_sum * 1.01f;")
    assert emulator.verify(replace(tested, source=spoiled)).status is Status.WRONG


def run_of(error, max_ulp, mean_ulp, accuracy=Accuracy.DEFAULT):
    found = Check(0, error, None, max_ulp, mean_ulp)
    return Emulation(Problem(4, 512), checks=(found,), accuracy=accuracy)


def test_what_is_said_of_a_verified_kernel_is_the_largest_of_all_runs():
    """The largest relative error, the most ulp and the largest average may be of three runs."""
    runs = (run_of(1e-6, 9.0, 0.5), run_of(3e-6, 8.0, 0.4), run_of(2e-6, 7.0, 0.6))
    verdict = Verdict.of_runs(program(), runs, "emulation")
    assert verdict.sentence == "largest relative error 3.0e-06, 9 ulp, 0.6 on average"


def test_errors_of_runs_that_are_held_to_less_are_said_apart():
    own, fast = run_of(1e-6, 9.0, 0.5), run_of(2.7e-5, 400.0, 20.0, Accuracy.FAST)
    verdict = Verdict.of_runs(program(), (own, fast), "emulation")
    said = "largest relative error 1.0e-06, 9 ulp, 0.5 on average"
    assert verdict.sentence == f"{said}; 2.7e-05, 400 ulp in runs held to fast"
    small = replace(fast, checks=own.checks)
    assert Verdict.of_runs(program(), (own, small), "emulation").sentence == said


NAN = float("nan")


@pytest.mark.parametrize(
    ("got", "due", "says"),
    [
        (NAN, 0.25, "is NaN, and should be 0.25"),
        (0.0, NAN, "is 0, and should be NaN"),
        (1.2e-38, 0.0, "is 1.2e-38, and should be exactly 0"),
        (0.25, 0.26, "is 0.25, and should be 0.26"),
        (0.0, 0.25, "is 0, and should be 0.25"),
        (0.25, 0.25001, "is 0.25, and should be 0.25001"),
        (float("inf"), 1.0, "is inf, and should be 1"),
    ],
)
def test_the_sentence_says_what_is_wrong_with_the_first_wrong_element(got, due, says):
    values = np.array([[1.0, 0.5, due]])
    output = np.array([[1.0, 0.5, got]], np.float32)
    found = check(output, Truth(values, values), DType.F32)
    run = Emulation(Problem(1, 3), checks=(found,))
    told = f"1 of 3 elements are wrong, the first, in row 0, column 2, {says}"
    assert run.status is Status.WRONG and run.sentence == told, run.sentence


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        ("+ i] * inverse_sum * 1.01f;", "should be 0."),
        ("+ i] * inverse_sum + 1e-37f;", "should be exactly 0"),
    ],
)
def test_a_wrong_kernel_is_told_by_its_first_wrong_element(emulator, spoiled, says):
    tested = program(threads_per_row=256)
    source = tested.source.replace("+ i] * inverse_sum;", spoiled)
    verdict = emulator.verify(replace(tested, source=source))
    assert verdict.status is Status.WRONG and says in verdict.sentence, verdict.sentence


@pytest.mark.exhaustive
def test_rounding_is_not_wrong(emulator):
    """A thread that sums 4096 elements: some seconds of emulation."""
    serial = program(RUN_TIME, cols=4096, threads=32, threads_per_row=1)
    assert emulator.verify(serial).status in (Status.INACCURATE, Status.VERIFIED)


def test_what_is_unknown_is_unverified(emulator):
    tested = program()
    begin = "  const int thread_in_row ="
    clock = tested.source.replace(begin, "  if (clock64() == 12345) return;\n" + begin, 1)
    verdict = emulator.verify(replace(tested, source=clock))
    assert verdict.status is Status.UNVERIFIED and "clock" in verdict.sentence
    broken = emulator.verify(replace(tested, source=tested.source.replace("threadIdx.x", "nought")))
    assert broken.status is Status.UNVERIFIED and "does not compile" in broken.sentence
    endless = Emulator("sm_90", step_limit=50).verify(tested)
    assert endless.status is Status.UNVERIFIED and "limit" in endless.sentence
    assert Emulation(tested.problem).status is Status.UNVERIFIED


def test_rows_too_wide_are_unverified(emulator):
    verdict = emulator.verify(program(RUN_TIME, cols=2**26, threads_per_row=256))
    assert verdict.status is Status.UNVERIFIED and "on a GPU" in verdict.sentence


def test_many_are_judged_in_order_by_several_processes():
    configs = [Config(threads=t, threads_per_row=32) for t in (32, 64, 96, 128)]
    programs = [program(config, cols=100) for config in configs]
    verdicts = list(verify_many(programs, "sm_90"))
    assert [v.program.config.threads for v in verdicts] == [32, 64, 96, 128]
    assert {v.status for v in verdicts} == {Status.VERIFIED}


def test_finalists_are_checked_while_time_allows(monkeypatch):
    problem = Problem(64, 512)
    configs = [Config(threads_per_row=32), Config(threads_per_row=64)]
    checked = check_finalists(problem, configs, "sm_90", budget_s=60)
    assert (checked.verified, checked.checked, checked.finalists) == (2, 2, 2)
    assert check_finalists(problem, configs, "sm_90", budget_s=-1).checked == 0


def test_a_wrong_finalist_is_an_error(monkeypatch):
    honest = ProgramUnderTest.of_config

    def spoiled(problem, config):
        made = honest(problem, config)
        return replace(made, source=made.source.replace("+ i] * inverse_sum;", "+ i];"))

    monkeypatch.setattr(ProgramUnderTest, "of_config", spoiled)
    with pytest.raises(WrongKernel, match="explorer verify"):
        check_finalists(Problem(64, 512), [Config(threads_per_row=32)], "sm_90")


def test_a_thread_that_adds_up_the_whole_row_may_round_as_often():
    problem, shared = Problem(64, 4096), Config(threads=384, threads_per_row=384, cache="none")
    alone = replace(shared, arrangement="replicated")
    few, many = (ProgramUnderTest.of_config(problem, c).rounding(problem) for c in (shared, alone))
    assert few < 1e-5 and many > 4096 * 2.0**-24


def test_a_row_that_is_too_wide_is_said_at_once():
    """To list what would be run takes minutes at the most columns that there can be."""
    config = Config(cache="none", cache_holds="input", static_cols=False)
    program = ProgramUnderTest.of_config(Problem(64, 1000), config).at_cols(2**31 - 2**16 - 4)
    verdict = Emulator("sm_90").verify(program)
    assert verdict.status is Status.UNVERIFIED
    assert "a row has 2147418108 elements, more than the 4194304 that are emulated" in (
        verdict.sentence
    )


def test_a_warp_of_single_elements_is_tried_at_columns_of_16_bits():
    config = Config(
        threads=64,
        threads_per_row=32,
        vector_bytes=4,
        cache="none",
        cache_holds="input",
        static_cols=False,
    )
    runs = emulated_runs(ProgramUnderTest.of_config(Problem(64, 1000), config))
    assert max(run.problem.cols for run in runs) > 2**15


def test_a_long_check_of_one_kernel_says_how_far_it_is(monkeypatch):
    told, progress = [], verification.VerifyProgress(1, Console())
    monkeypatch.setattr(progress, "show", lambda text, kind: told.append(text))
    program = ProgramUnderTest.of_config(Problem(64, 512), Config(threads_per_row=64))
    assert [*verify_many([program], "sm_90", told=progress.told)] and not told
    monkeypatch.setattr(verification, "LONG_S", 0.0)
    assert [*verify_many([program], "sm_90", told=progress.told)]
    runs = len(emulated_runs(program))
    assert len(told) == runs and told[-1].startswith(f"{runs - 1} of {runs} runs, ")
