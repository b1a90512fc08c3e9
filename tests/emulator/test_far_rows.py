"""Blocks far from 0: right kernels of all kinds are verified, narrow indices are found out."""

import time
from dataclasses import replace

import numpy as np
import pytest
from kinds import HELD, KINDS, held, problem_of
from planted import planted
from virtual_arch import ARCH

from explorer.compile.compiler import Compiler
from explorer.devices.emulated import emulator
from explorer.devices.emulated.device import EmulatedKernel, LaunchRefused, emulate
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.emulated.far import Order, emulate_far, far_problems, is_addressable, order_of
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.ptx_emulator import Kind
from explorer.reference.inputs import verification_inputs

ACROSS = Config(threads=256, threads_per_row=64, cache_holds="input")
COMPILER = Compiler(ARCH, line_info=True)


def kernel_of(program):
    ptx = COMPILER.compile(program.source).ptx
    return EmulatedKernel.of(ptx, (), rewrites=program.config.rewrites)


def far_runs(program, **options):
    """What comes of a program on every far problem."""
    kernel, split = kernel_of(program), program.split
    runs = []
    for far in far_problems(program.problem, split.block_rows, split.rows_together):
        launched = replace(
            kernel, launches=program.launches(far), scratch_bytes=program.scratch_bytes(far)
        )
        rounding = program.rounding(far)
        runs.append(emulate_far(launched, far, split.block_rows, rounding=rounding, **options))
    return runs


def verified(problem, config):
    runs = far_runs(ProgramUnderTest.of_config(problem, config))
    for run in runs:
        assert run.status is Status.VERIFIED, (str(run.problem), run.sentence, run.findings)
    return runs


# ------------------------------------------------------------------ which rows


@pytest.mark.parametrize("cols", [1, 2, 37, 1000, 4096, 100_000])
@pytest.mark.parametrize("block_rows", [1, 3, 32])
def test_the_last_rows_lie_beyond_all_narrow_indices(cols, block_rows):
    (far,) = far_problems(Problem(64, cols), block_rows)
    assert far.rows <= (2**31 - 1) * block_rows
    assert far.rows * cols > 2**32 or far.rows > (2**31 - 40) * block_rows
    assert (far.rows > 2**32) == (cols <= 32 and block_rows > 2)
    assert far.rows > 2**16 * block_rows
    assert block_rows == 1 or far.rows % block_rows


@pytest.mark.parametrize("kind", KINDS)
def test_far_problems_are_of_the_same_kind(kind):
    problem = problem_of(kind, 300, 130)
    for far in far_problems(problem, 8, 4):
        assert far.input_elements > 2**32
        assert (far.op, far.mask, far.scale, far.in_place) == (
            problem.op, problem.mask, problem.scale, problem.in_place
        )  # fmt: skip
        gaps = far.input_stride - far.cols, problem.input_stride - problem.cols
        assert gaps[0] == gaps[1] or (gaps[1] > 0 and gaps[0] > 2**24)
        if far.inner > 1:
            assert far.inner % 4 == 0


def test_a_middle_axis_is_tried_with_short_and_with_long_slices():
    short, long = far_problems(Problem(300, 130, inner=100), 16, 4)
    assert short.inner == 20 and short.rows // short.inner > 10**6
    assert long.inner * long.cols > 2**31 and long.rows == 2 * long.inner


# ------------------------------------------------------------------ right kernels


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_verified(kind):
    problem = problem_of(kind, 300, 130)
    runs = verified(problem, held(problem, ACROSS if problem.inner > 1 else HELD))
    repeated = problem.mask is Mask.ADDITIVE and problem.mask_rows < problem.rows
    with_gaps = 1 if problem.is_dense else 3
    assert len(runs) == (2 if problem.inner > 1 or repeated else with_gaps)


INPUT = {"cache_holds": "input"}
STREAMED = {"cache": "none", **INPUT}
SHARED = {"cache": "shared", **INPUT}
CLUSTER = {"cluster": 4, "threads": 128, "threads_per_row": 128, **INPUT}
SPLIT = {"algorithm": "online-block-max", "threads": 128, "threads_per_row": 128, "unroll": 2}
THREE = {"threads_per_row": 64, "cache": "none", "launches": "three"}
THREAD = {"threads": 64, "threads_per_row": 1, "vector_bytes": 4}

CONFIGS = {
    "registers": (Problem(64, 4096), {}),
    "registers, 16 bits": (Problem(64, 4096, DType.BF16), INPUT),
    "unaligned, shared": (
        Problem(64, 1001, DType.BF16),
        {"cache": "shared", "threads_per_row": 128},
    ),
    "no cache": (Problem(64, 4097), {"algorithm": "online", **STREAMED}),
    "cluster": (Problem(64, 4096), CLUSTER),
    "cluster, mbarriers": (Problem(64, 4097), {"exchange": "mbarrier", **CLUSTER}),
    "two launches": (Problem(64, 4096), {"launches": "two", **SPLIT, **STREAMED}),
    "two overlapping launches": (
        Problem(64, 4097),
        {"launches": "two-overlapped", **SPLIT, **STREAMED},
    ),
    "three launches": (Problem(64, 512), THREE),
    "three launches, unaligned": (Problem(64, 513), THREE),
    "three launches, cols at run time": (Problem(64, 513), {"static_cols": False, **THREE}),
    "persistent": (Problem(64, 4096), {"persistent": 2}),
    "persistent, several rows": (
        Problem(64, 1001),
        {"threads_per_row": 32, "persistent": 1, **INPUT},
    ),
    "span staging": (Problem(64, 131), {"threads_per_row": 32, "staging": "span", **INPUT}),
    "span staging, backward": (
        Problem(64, 33, DType.BF16, Op.SOFTMAX_BACKWARD),
        {"threads": 64, "threads_per_row": 2, "staging": "span", **INPUT},
    ),
    "bulk staging": (Problem(64, 4096), {"staging": "bulk", **SHARED}),
    "async staging": (Problem(64, 4096), {"staging": "async", **SHARED}),
    "output as cache": (Problem(64, 4096), {"cache": "output"}),
    "backward": (Problem(64, 1000, op=Op.SOFTMAX_BACKWARD), {"threads_per_row": 64, **INPUT}),
    "a mask for every row": (Problem(64, 1000, mask=Mask.ADDITIVE, mask_rows=64), INPUT),
    "a causal mask of all rows": (Problem(64, 1000, mask=Mask.CAUSAL), INPUT),
    "one column": (Problem(64, 1), {**THREAD, **STREAMED}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_way_of_working_is_verified(name):
    problem, choices = CONFIGS[name]
    verified(problem, Config(**choices))


def test_few_elements_are_computed():
    (run,) = verified(Problem(64, 4096), Config())
    assert run.elements <= 15 * 4096 and run.problem.rows > 2**20
    (wide,) = far_runs(ProgramUnderTest.of_config(Problem(64, 4096), Config()), most_elements=1)
    assert wide.elements == 2 * 4096 and wide.status is Status.VERIFIED


def test_a_far_run_takes_a_tenth_of_a_second():
    program = ProgramUnderTest.of_config(Problem(64, 4096), Config())
    far_runs(program)
    start = time.process_time()
    far_runs(program)
    assert time.process_time() - start < 0.3  # 0.03 s on an idle core


# ------------------------------------------------------------------ wrong kernels

BLOCK = "static_cast<long long>(blockIdx.x) * kRowsPerBlock"

NARROW = {
    # name: kind, text of the emitted code, what it becomes
    "input offset in 32 bits": (
        "softmax",
        "input += index * kCols;",
        "input += static_cast<int>(index) * kCols;",
    ),
    "output offset in unsigned 32 bits": (
        "softmax",
        "output += index * kCols;",
        "output += static_cast<unsigned>(index) * kCols;",
    ),
    "input offset in 32 bits, one result a row": (
        "log-sum-exp",
        "input += index * kCols;",
        "input += static_cast<int>(index * kCols);",
    ),
    "result in 16 bits": (
        "log-sum-exp",
        "output[index]",
        "output[index & 0xffff]",
    ),
    "another result in 16 bits": (
        "log-probabilities",
        "rank_of_rows[index]",
        "rank_of_rows[index & 0xffff]",
    ),
    "ids by 16 bits of the row": (
        "log-probabilities",
        "ids + own_row * kIds",
        "ids + (own_row & 0xffff) * kIds",
    ),
    "distance of ids in unsigned 32 bits": (
        "log-probabilities, int32, gaps",
        "ids + own_row * ids_stride",
        "ids + own_row * static_cast<unsigned>(ids_stride)",
    ),
    "block number in 16 bits": (
        "softmax",
        BLOCK,
        "static_cast<long long>(static_cast<unsigned short>(blockIdx.x)) * kRowsPerBlock",
    ),
    "block number in 8 bits": ("softmax", BLOCK, "(blockIdx.x & 255ll) * kRowsPerBlock"),
    "row in 24 bits": ("softmax", BLOCK, f"{BLOCK} & 0xffffff"),
    "lengths by 16 bits of the row": ("lengths", "lengths[index]", "lengths[index & 0xffff]"),
    "causal mask by 16 bits of the row": (
        "causal",
        "index < mask_rows ? index : index % mask_rows",
        "static_cast<unsigned short>(index) % mask_rows",
    ),
    "additive mask not repeated": (
        "additive, repeated, scaled",
        "mask + index % mask_rows * kCols",
        "mask + (index < 4096 ? index % mask_rows : 0) * kCols",
    ),
    "strided output in 32 bits": (
        "gaps",
        "output += index * output_stride",
        "output += static_cast<int>(index * output_stride)",
    ),
    "distance of rows in unsigned 32 bits": (
        "gaps",
        "input += index * input_stride",
        "input += index * static_cast<unsigned>(input_stride)",
    ),
    "gradient in 32 bits": (
        "softmax_backward",
        "grad += index * kCols - begin;",
        "grad += static_cast<int>(index * kCols) - begin;",
    ),
    "in place in 32 bits": (
        "in place",
        "output += index * kCols;",
        "output += static_cast<int>(index * kCols);",
    ),
    "slice in 32 bits": (
        "middle axis",
        "const long long slice = row / inner * kCols * inner;",
        "const int slice = static_cast<int>(row / inner * kCols * inner);",
    ),
    "distance of columns in 16 bits": (
        "middle axis",
        "return {slice + row % inner, inner,",
        "return {slice + row % inner, static_cast<short>(inner),",
    ),
    "the target by 16 bits of the row": (
        "losses, middle axis",
        "ids[row + i]",
        "ids[(row & 0xffff) + i]",
    ),
    "the gradient of the loss by 16 bits of the row": (
        "losses, middle axis, backward, in place",
        "loss_grad_of_rows[row + i]",
        "loss_grad_of_rows[(row & 0xffff) + i]",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NARROW)
def test_indices_of_too_few_bits_are_found_out(name):
    kind, right, wrong = NARROW[name]
    problem = problem_of(kind, 300, 130)
    honest = ProgramUnderTest.of_config(
        problem, held(problem, ACROSS if problem.inner > 1 else HELD)
    )
    assert any(r.status is Status.WRONG for r in far_runs(planted(honest, [(right, wrong)])))


def test_an_index_in_32_bits_is_right_on_every_small_problem_and_named_on_a_far_one():
    problem = Problem(300, 130)
    change = ("input += index * kCols;", "input += static_cast<int>(index) * kCols;")
    program = planted(ProgramUnderTest.of_config(problem, HELD), [change])
    kernel = replace(kernel_of(program), launches=program.launches(problem))
    near = emulate(kernel, problem, verification_inputs(problem), rounding=1e-4)
    assert near.status is Status.VERIFIED
    (run,) = far_runs(program)
    outside = [f for f in run.findings if f.kind is Kind.OUT_OF_BOUNDS]
    assert outside and outside[0].source is not None and outside[0].block[0] > 2**20


def test_a_write_beside_the_rows_in_place_is_found():
    problem = Problem(300, 130, in_place=True)
    start = "  const Row row = row_at(input, output, index);\n"
    stray = "  if (threadIdx.x == 0 && index == 65535) output[index * kCols - 1] = 0.0f;\n"
    program = ProgramUnderTest.of_config(problem, replace(HELD, threads=64))
    (run,) = far_runs(planted(program, [(start, start + stray)]))
    assert run.status is Status.WRONG
    assert any("belongs to no block that runs" in f.message for f in run.findings)


def test_the_row_of_a_wrong_element_is_the_far_one():
    scaled = (") * inverse_sum;", ") * inverse_sum * (blockIdx.x > 99999 ? 2.f : 1.f);")
    program = planted(ProgramUnderTest.of_config(Problem(300, 130), HELD), [scaled])
    (run,) = far_runs(program)
    assert run.status is Status.WRONG and not run.findings
    assert run.check.first[0] > 99999 and f"of {run.elements} elements" in run.sentence


# ------------------------------------------------------------------ kernels that deal out otherwise


def near_run(program, problem):
    kernel = replace(
        kernel_of(program),
        launches=program.launches(problem),
        scratch_bytes=program.scratch_bytes(problem),
    )
    return kernel, emulate(kernel, problem, verification_inputs(problem), rounding=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_emitted_kernels_work_in_order(name):
    problem, choices = CONFIGS[name]
    program = ProgramUnderTest.of_config(problem, Config(**choices))
    few = problem.resized(5 * program.split.block_rows - program.split.block_rows // 2)
    kernel, run = near_run(program, few)
    assert order_of(run, kernel, program.split.block_rows) is Order.ASCENDING


def test_rows_that_are_dealt_out_otherwise_are_noticed():
    program = ProgramUnderTest.of_config(Problem(300, 130), replace(HELD, threads=64))
    rows = Problem(7, 130)
    for block, order in (
        ("gridDim.x - 1 - blockIdx.x", Order.DESCENDING),
        ("(blockIdx.x + 1) % gridDim.x", Order.OTHER),
    ):
        moved = planted(program, [("index = blockIdx.x;", f"index = {block};")])
        kernel, run = near_run(moved, rows)
        assert run.status is Status.VERIFIED
        assert order_of(run, kernel, moved.split.block_rows) is order


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", ["descending", "ascending"])
def test_the_order_of_blocks_is_told_where_the_problem_has_but_one(order):
    """64 rows are one block's: whether the last one works on the first rows does not show."""
    problem = Problem(64, 301, DType.BF16, mask=Mask.CAUSAL)
    config = Config(
        threads=128, threads_per_row=2, cache="shared", cache_holds="input", row_order=order
    )
    verdict = Emulator("sm_90").verify(ProgramUnderTest.of_config(problem, config))
    assert verdict.status is Status.VERIFIED, verdict.sentence
    assert any(run.elements for run in verdict.runs)


def test_a_descending_order_is_run_far():
    """The first blocks work on the last rows, where a narrow number of theirs shows."""
    problem = Problem(8192, 1024, mask=Mask.CAUSAL)
    config = Config(threads=128, threads_per_row=128, row_order="descending")
    emulator = Emulator("sm_90")
    program = ProgramUnderTest.of_config(problem, config)
    verdict = emulator.verify(program)
    assert verdict.status is Status.VERIFIED and not any(run.left_out for run in verdict.runs)
    assert any(run.elements for run in verdict.runs)
    wide, narrow = "index * kCols", "static_cast<unsigned>(index * kCols)"
    assert wide in program.source
    narrow = replace(program, source=program.source.replace(wide, narrow))
    assert emulator.verify(narrow).status is Status.WRONG


@pytest.mark.exhaustive
def test_a_stride_of_blocks_is_run_far():
    """Each block has two tiles, more than 2^32 elements apart."""
    config = Config(threads=256, threads_per_row=64, persistent=2)
    program = ProgramUnderTest.of_config(Problem(8192, 1024), config)
    emulator = Emulator("sm_90", step_limit=30_000)  # the wrong one never comes to an end
    verdict = emulator.verify(program)
    assert verdict.status is Status.VERIFIED and not any(run.left_out for run in verdict.runs)
    step = "static_cast<long long>(gridDim.x) * kRowsPerBlock"
    assert step in program.source
    narrow = f"static_cast<long long>(static_cast<unsigned>({step} * kCols)) / kCols"
    wrong = planted(program, [(step, narrow)])
    assert emulator.verify(wrong).status is Status.WRONG


def test_a_grid_that_is_no_whole_number_of_blocks_a_tile_is_refused():
    program = ProgramUnderTest.of_config(Problem(300, 130), HELD)
    (far,) = far_problems(program.problem, 4)
    step = program.launches(far)[0]
    kernel = replace(kernel_of(program), launches=(replace(step, grid=step.grid + 9),))
    with pytest.raises(LaunchRefused, match="do not share"):
        emulate_far(kernel, far, 4)


def test_truth_is_that_of_the_far_rows():
    """Lengths and masks are those of the rows, whose numbers are far from 0."""
    program = ProgramUnderTest.of_config(Problem(300, 130, mask=Mask.CAUSAL), HELD)
    (far,) = far_problems(program.problem, program.split.block_rows)
    assert far.mask_rows == 135 and np.gcd(far.rows, 135) == 135


def test_a_kernel_of_whose_rows_no_far_one_has_an_address_is_not_verified(monkeypatch):
    wide = Problem(4, 2**22, DType.F64)
    assert is_addressable(wide) and far_problems(wide, 1) == ()
    monkeypatch.setattr(emulator, "far_problems", lambda *_, **__: ())
    program = ProgramUnderTest.of_config(Problem(300, 130), HELD)
    verdict = Emulator(ARCH).verify(program)
    assert verdict.status is Status.UNVERIFIED and "no addresses" in verdict.sentence
    far = replace(program, problem=Problem(2**26, 130))
    assert Emulator(ARCH).verify(far).status is Status.VERIFIED


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2**31 - 1, 4096),
        Problem(64, 640, input_stride=700, output_stride=100_000),
        Problem(10**9, 4096, mask=Mask.ADDITIVE, mask_rows=5 * 10**8),
        Problem(2 * 10**9, 1200, DType.F64, inner=10**9),
    ],
    ids=str,
)
def test_a_problem_that_no_memory_holds_is_verified_on_others(problem):
    config = Config(threads=128, threads_per_row=32, cache="none", cache_holds="input")
    assert not is_addressable(problem) or problem.output_stride == 100_000
    verdict = Emulator("sm_90").verify(ProgramUnderTest.of_config(problem, config))
    assert verdict.status is Status.VERIFIED, verdict.sentence
    assert all(is_addressable(run.problem) for run in verdict.runs)
