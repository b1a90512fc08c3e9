"""The host part of a file: launch() is interpreted, and must launch what was verified."""

from dataclasses import replace

import planted_kernels
import pytest
from space_sample import space_sample

from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.units import emit
from explorer.codegen.variant import split_source
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.host_check import AS_EMITTED, check_host
from explorer.devices.program_under_test import _code, read_emitted
from explorer.devices.verdict import Status
from explorer.evaluate.verify import verify_many
from explorer.model.config import Config
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.ops import Op

LOOPED = Problem(64, 512), Config(threads=128, threads_per_row=32, cache_holds="input")
TWO = Config(algorithm="online-block-max", threads=128, threads_per_row=128, cache="none")
SPLIT = Problem(64, 8192), replace(TWO, cache_holds="input", unroll=8, launches="two")
OVERLAPPED = SPLIT[0], replace(SPLIT[1], launches="two-overlapped")
LOOP = Config(threads=256, threads_per_row=256, cache="none", cache_holds="input", unroll=2)
THREE = Problem(64, 8192), replace(LOOP, launches="three")
STAYING = Problem(64, 4096), Config(persistent=2)
SHARED = Problem(64, 4096), Config(cache="shared", static_cols=False)
RING = Problem(8192, 4096), planted_kernels.RING
CLUSTER = Problem(512, 32768), planted_kernels.CLUSTER

GRADIENT = Problem(64, 1000, op=Op.SOFTMAX_BACKWARD), Config(cache_holds="input")
STRIDED = Problem(64, 1000, input_stride=1024, output_stride=1008), Config()
CAUSAL = Problem(64, 1024, mask=Mask.CAUSAL, mask_rows=64), Config()
SCALED = Problem(64, 1000, scale=0.5), Config()
GAPS = {"scale": 0.5, "input_stride": 8200, "output_stride": 8208}
SCALED_THREE = Problem(64, 8192, op=Op.LOG_SOFTMAX, **GAPS), THREE[1]
SCALED_TWO = Problem(64, 8192, **GAPS), OVERLAPPED[1]
GRID = "static_cast<unsigned>(blocks)"
ALLOWED_ONCE = """static bool done = false;
  static int most = 0;
  cudaError_t allowed = cudaSuccess;
  if (CHECK) {
    allowed = cudaFuncSetAttribute(softmax_f32_kernel, kLimit, shared);
    done = true;
    most = shared;
  }"""

WRONG = {
    "a static grid": (LOOPED, "const unsigned grid =", "static const unsigned grid ="),
    "a static size of shared memory": (SHARED, "const int shared =", "static const int shared ="),
    "shared memory is allowed once": (
        SHARED,
        "const cudaError_t allowed = cudaFuncSetAttribute(softmax_f32_kernel, kLimit, shared);",
        ALLOWED_ONCE.replace("CHECK", "!done"),
    ),
    "the output may be unaligned": (
        LOOPED,
        "(output) % sizeof(Word) != 0)",
        "(output) % sizeof(Element) != 0)",
    ),
    "any gradient": (GRADIENT, "(grad) % sizeof(Word)", "(grad) % sizeof(Element)"),
    "any stride": (STRIDED, "input_stride % kWidth != 0", "input_stride % kWidth < 0"),
    "strides less than a row": (STRIDED, "input_stride < kCols", "input_stride < 1"),
    "any columns": (SHARED, "cols % kWidth != 0", "cols % kWidth < 0"),
    "no columns are launched": (SHARED, "|| cols == 0", "|| cols < 0"),
    "a mask of no rows": (CAUSAL, "mask_rows < 1", "mask_rows < 0"),
    "the scale that it was emitted for": (
        SCALED,
        "(input, output, scale)",
        "(input, output, 0.5f)",
    ),
    "the first of three launches alone is scaled": (
        SCALED_THREE,
        "shift_kernel<<<grid, kThreads, 0, stream>>>(\n"
        "      input, output, scratch, rows, input_stride, output_stride, scale);",
        "shift_kernel<<<grid, kThreads, 0, stream>>>(\n"
        "      input, output, scratch, rows, input_stride, output_stride, 1.0f);",
    ),
    "strides in another order for the second launch": (
        SCALED_TWO,
        "row_kernel, input, output, scratch, input_stride,\n      output_stride, scale);",
        "row_kernel, input, output, scratch, output_stride,\n      input_stride, scale);",
    ),
    "4096 rows": (LOOPED, GRID, f"{GRID} - (rows == 4096)"),
    "a number of columns": (
        SHARED,
        "|| cols == 0",
        "|| cols == 0 || cols == 5000",
    ),
    "many columns": (SHARED, "|| cols == 0", "|| cols == 0 || cols > 98304"),
    "whole sets of 64 rows, beyond the first": (
        LOOPED,
        GRID,
        f"{GRID} - (rows % 64 == 0 && rows > 64)",
    ),
    "the error of a launch is lost": (
        LOOPED,
        "return cudaGetLastError();",
        "return cudaSuccess;",
    ),
    "the first launch's error is lost": (
        OVERLAPPED,
        "  if (launched != cudaSuccess) return launched;\n",
        "",
    ),
    "the grid counts rows in an int": (LOOPED, "const long long blocks =", "const int blocks ="),
    "half of the last block is forgotten": (
        LOOPED,
        "(rows + kRowsPerBlock - 1) / kRowsPerBlock",
        "(rows + kRowsPerBlock / 2) / kRowsPerBlock",
    ),
    "too many rows are launched in part": (
        LOOPED,
        "  if (blocks > 0x7fffffffLL) return cudaErrorInvalidValue;\n",
        "",
    ),
    "no rows are launched": (LOOPED, "  if (rows == 0) return cudaSuccess;\n", ""),
    "an array may be unaligned": (
        LOOPED,
        "if (reinterpret_cast<size_t>(input) % sizeof(Word) != 0)",
        "if (reinterpret_cast<size_t>(input) % sizeof(Element) != 0)",
    ),
    "another stream": (LOOPED, ", 0, stream>>>", ", 0>>>"),
    "another block": (LOOPED, "<<<grid, kThreads, ", "<<<grid, kThreadsPerRow, "),
    "the input is written": (LOOPED, "(input, output, rows);", "(output, output, rows);"),
    "the error of a launch is kept": (
        LOOPED,
        "return cudaGetLastError();",
        "return cudaErrorInvalidValue;",
    ),
    "sizes in an int": (
        THREE,
        "return static_cast<size_t>(rows) * row * sizeof(float);",
        "return static_cast<int>(rows) * static_cast<int>(row) * static_cast<int>(sizeof(float));",
    ),
    "a maximum too few": (THREE, "* kWidth + 1;", "* kWidth;"),
    "shared memory is not allowed": (SHARED, "kLimit, shared)", "kLimit, 0)"),
    "shared memory of one column less": (
        SHARED,
        "const int row_vectors = cols / kWidth;",
        "const int row_vectors = (cols - 1) / kWidth;",
    ),
    "a launch behind the other's stream": (OVERLAPPED, "  next.stream = stream;\n", ""),
    "a part of scratch for each row": (
        SPLIT,
        "return rows * kParts * sizeof(State);",
        "return rows * (kParts - 1) * sizeof(State);",
    ),
}
RIGHT = {
    "names": (LOOPED, "blocks", "all_blocks"),
    "shared memory is allowed where more is needed": (
        SHARED,
        "const cudaError_t allowed = cudaFuncSetAttribute(softmax_f32_kernel, kLimit, shared);",
        ALLOWED_ONCE.replace("CHECK", "shared > most"),
    ),
    "one more check": (
        LOOPED,
        "  if (rows == 0) return cudaSuccess;\n",
        "  if (rows == 0 || input == nullptr) return cudaSuccess;\n",
    ),
    "another way to round up": (
        LOOPED,
        "(rows + kRowsPerBlock - 1) / kRowsPerBlock",
        "rows / kRowsPerBlock + (rows % kRowsPerBlock != 0 ? 1 : 0)",
    ),
    "more scratch": (SPLIT, "return rows * kParts * sizeof", "return 64 + rows * kParts * sizeof"),
}  # fmt: skip
UNKNOWN = {
    "a second launch too many": (
        LOOPED,
        "  return cudaGetLastError();",
        "  softmax_f32_512_kernel<<<grid, kThreads, 0, stream>>>(input, output, rows);\n"
        "  return cudaGetLastError();",
    ),
    "launches that do not overlap": (
        OVERLAPPED,
        "programmaticStreamSerializationAllowed = 1;",
        "programmaticStreamSerializationAllowed = 0;",
    ),
    "a grid of all blocks of the GPU": (STAYING, "blocks < most ? blocks : most", "most"),
    "an SM more": (STAYING, "static_cast<long long>(sms) *", "static_cast<long long>(sms + 1) *"),
    "twice as many blocks": (LOOPED, GRID, f"{GRID} * 2"),
    "a loop": (LOOPED, "  if (rows == 0)", "  for (int i = 0; i < 3; ++i) {}\n  if (rows == 0)"),
    "a macro": (LOOPED, "#include <cuda_runtime.h>", "#include <cuda_runtime.h>\n#define rows 1"),
    "other parameters": (
        LOOPED,
        "const Element* input, Element* output, long long rows, cudaStream_t",
        "Element* output, const Element* input, long long rows, cudaStream_t",
    ),
    "a call of CUDA": (LOOPED, "  if (rows == 0)", "  cudaDeviceReset();\n  if (rows == 0)"),
}  # fmt: skip


@pytest.fixture
def edited(tmp_path):
    """The program of a file whose host part has another text."""

    def read(base, old, new):
        source = emit(*base).source
        begin = source.index(
            "// ------------------------------------------------------------------ host"
        )
        assert old in source[begin:]
        path = tmp_path / "edited.cu"
        path.write_text(source[:begin] + source[begin:].replace(old, new))
        return read_emitted(path)

    return read  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_host_part_that_launches_something_else_is_wrong(name, edited):
    program = edited(*WRONG[name])
    assert program.host.fault and not program.host.unknown, program.host
    assert not program.is_edited  # so that its kernels take no more runs than as emitted


@pytest.mark.parametrize("name", RIGHT)
def test_a_host_part_of_other_words_is_right(name, edited):
    program = edited(*RIGHT[name])
    assert program.host == AS_EMITTED and not program.is_edited and program.has_own_text


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_host_part_that_is_not_interpreted_is_said_not_to_be(name, edited):
    program = edited(*UNKNOWN[name])
    assert program.host.unknown and not program.host.fault
    assert program.is_edited  # what stands there may be for the kernels


@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        (SPLIT, "kUnroll = 8", "kUnroll = 4"),
        (OVERLAPPED, "kThreads = 128", "kThreads = 256"),
        (LOOPED, "kThreads = 128", "kThreads = 64"),
        (STAYING, "kBlocksPerSm = 2", "kBlocksPerSm = 3"),
        (RING, "kStages = 4", "kStages = 2"),
        (CLUSTER, "kCluster = 4", "kCluster = 8"),
        (SHARED, "kThreads = 256", "kThreads = 128"),
    ],
)
def test_a_kernel_whose_constants_were_edited_is_launched_by_them(base, old, new, tmp_path):
    """The text keeps the names that it was emitted with, which have a digest of its code."""
    path = tmp_path / "edited.cu"
    source = emit(*base).source
    assert source.count(f" {old};") == 1
    path.write_text(source.replace(f" {old};", f" {new};"))
    program = read_emitted(path)
    assert program.host == AS_EMITTED and program.is_edited


@pytest.mark.parametrize(
    ("base", "status"), [(LOOPED, Status.VERIFIED), ((LOOPED[0], Config()), Status.WRONG)]
)
def test_a_block_more_is_executed(base, status, edited):
    """It finds no row, or reads beyond the last one."""
    program = edited(base, GRID, f"{GRID} + 1")
    assert program.host.surplus == 1 and program.is_edited
    verdict = Emulator("sm_90").verify(program).with_host_part()
    assert verdict.status is status, verdict.sentence


def test_the_verdict_is_of_the_whole_file(edited):
    wrong, right, unknown = (
        edited(*one) for one in (WRONG["a static grid"], RIGHT["names"], UNKNOWN["a loop"])
    )
    found = list(verify_many([wrong, right, unknown], "sm_90", 5))
    assert [verdict.status for verdict in found] == [
        Status.WRONG,
        Status.VERIFIED,
        Status.UNVERIFIED,
    ]
    assert found[0].sentence.startswith("the host part is wrong: at ")
    assert "a statement with 'for' is not interpreted" in found[2].sentence


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", [*space_sample()], ids=str)
def test_every_host_part_is_interpreted_and_right(kernel):
    source = emit(kernel.problem, kernel.config).source
    host = _code(split_source(source)[1])
    split = WorkSplit(kernel.problem, kernel.config)
    found = check_host(_code(source), _code(source), [host], split, LaunchPlan.read(source))
    assert found == AS_EMITTED
