"""Files that explorer emit wrote, as they were and edited."""

import pytest

from explorer.codegen import emit
from explorer.config import Config
from explorer.devices.emulated.emulation import Status
from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.evaluate.emitted_file import read_emitted
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.op import Mask, Op
from explorer.problem import Problem

CONFIGS = [
    (Problem(8, 512), Config(threads_per_row=64)),
    (Problem(8, 513, DType.BF16), Config(cache="shared", cache_holds="input", static_cols=False)),
    (Problem(8, 37, DType.F16), Config(threads_per_row=2, reduction="shared-tree")),
    (Problem(8, 512), Config(threads=64, threads_per_row=32, rows_per_thread=2, persistent=2)),
    (Problem(8, 37), Config(threads=64, threads_per_row=2, staging="span")),
    (Problem(8, 512), Config(launches="three", cache="none", cache_holds="input")),
    (Problem(8, 512, scale=0.5, mask=Mask.LENGTHS), Config(cache_holds="input")),
    (Problem(8, 37, mask=Mask.CAUSAL, mask_rows=4), Config(threads_per_row=32)),
    (Problem(8, 37, mask=Mask.ADDITIVE, scale=2.0), Config(threads_per_row=32)),
    (Problem(8, 512, op=Op.LOG_SOFTMAX, in_place=True), Config(cache_holds="input")),
    (Problem(8, 512, op=Op.SOFTMAX_BACKWARD, scale=-2.0), Config(cache_holds="input")),
    (
        Problem(8, 37, DType.F16, Op.LOG_SOFTMAX_BACKWARD, DType.F32, output_stride=40),
        Config(cache="shared", cache_holds="input", threads_per_row=8, static_cols=False),
    ),
    (Problem(8, 37, inner=8, op=Op.SOFTMAX_BACKWARD), Config(cache_holds="input")),
]


@pytest.fixture
def write(tmp_path):
    def written(source):
        path = tmp_path / "mine.cu"
        path.write_text(source)
        return path

    return written


@pytest.mark.parametrize(("problem", "config"), CONFIGS)
def test_a_file_is_launched_as_its_config_is(problem, config, write):
    variant = emit(problem, config)
    read = read_emitted(write(variant.source))
    own = ProgramUnderTest.of(variant)
    assert read.launches(problem) == own.launches(problem) == variant.launches
    assert (read.config, read.any_alignment, read.file) == (config, own.any_alignment, "mine.cu")


def test_what_was_edited_counts(write):
    source = emit(*CONFIGS[0]).source
    edited = source.replace("kThreads = 256;", "kThreads = 128;").replace("_kernel", "_mine")
    read = read_emitted(write(edited))
    assert read.config.threads == 128 and read.config.rows_per_block == 2
    assert read.launches(Problem(7, 512))[0].entry == "softmax_f32_512_mine"
    verdict = Emulator("sm_90").verify(read)
    assert verdict.status is Status.VERIFIED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("static_cast<unsigned>(blocks)", "static_cast<unsigned>(blocks - 1)"),
        ("<<<grid, kThreads, ", "<<<grid, kThreads / 2, "),
        ("  __syncthreads();", "#ifdef __CUDACC_RTC__\n  __syncthreads();\n#endif"),
    ],
)
def test_an_edit_that_the_emulator_cannot_see_is_refused(old, new, write):
    """A wrong launch, or a barrier that nvcc does not compile, must not be called verified."""
    source = emit(*CONFIGS[0]).source
    assert old in source
    with pytest.raises(InvalidInput, match="put that part back as it was emitted"):
        read_emitted(write(source.replace(old, new)))


def test_rows_and_blocks_that_were_edited_count(write):
    source = emit(*CONFIGS[3]).source
    edited = source.replace("kRowsPerThread = 2;", "kRowsPerThread = 1;")
    edited = edited.replace("kBlocksPerSm = 2;", "kBlocksPerSm = 4;")
    read = read_emitted(write(edited))
    assert (read.config.rows_per_thread, read.config.persistent) == (1, 4)


def test_the_names_of_several_kernels_are_the_emitted_ones(write):
    source = emit(*CONFIGS[5]).source
    with pytest.raises(InvalidInput, match="must be called softmax_f32_512_exp_kernel"):
        read_emitted(write(source.replace("_exp_kernel(", "_mine_kernel(")))
    assert Emulator("sm_90").verify(read_emitted(write(source))).status is Status.VERIFIED


def test_an_edit_that_breaks_it_is_found(write):
    source = emit(*CONFIGS[0]).source
    read = read_emitted(write(source.replace("kThreadsPerRow = 64;", "kThreadsPerRow = 32;")))
    assert Emulator("sm_90").verify(read).status is Status.VERIFIED
    shifted = source.replace("  value = reduce_lanes<32>(value, combine);\n", "", 1)
    assert shifted != source
    assert Emulator("sm_90").verify(read_emitted(write(shifted))).status is Status.WRONG


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("//   explorer emit", "//   explored", "no 'explorer emit' line"),
        ("kThreads = 256;", "kThreads = 2 * 128;", "kThreads as a plain number"),
        ("kThreads = 256;", "kThreads = 100;", "multiple of 32"),
        ("kThreadsPerRow = 64;", "kThreadsPerRow = 96;", "must divide kThreads"),
        ("static_assert(sizeof(Word)", "static_assert(alignof(Word)", "bytes an access moves"),
        ("long long rows)", "long long row_count)", "must take (input, output, rows)"),
        ("__global__", "__device__", "0 __global__ functions"),
        ("--cols 512", "--cols many", "cols is 'many'; it must be a number"),
    ],
)
def test_refusals_say_what_is_missing(old, new, says, write):
    source = emit(*CONFIGS[0]).source
    assert old in source
    with pytest.raises(InvalidInput) as refusal:
        read_emitted(write(source.replace(old, new)))
    assert says in str(refusal.value)


def test_other_cols(write, tmp_path):
    static = read_emitted(write(emit(*CONFIGS[0]).source))
    with pytest.raises(InvalidInput, match="512 columns only"):
        static.at_cols(500)
    run_time = read_emitted(write(emit(*CONFIGS[1]).source)).at_cols(512)
    assert run_time.cols == 512 and run_time.any_alignment
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_emitted(tmp_path / "none.cu")
