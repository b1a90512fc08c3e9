"""Files that explorer emit wrote, as they were and edited."""

import re
from functools import partial
from time import monotonic

import pytest

from explorer.codegen.units import emit
from explorer.codegen.variant import launches, scratch_bytes
from explorer.compile.compiler import compile_in_time
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.host_check import AS_EMITTED
from explorer.devices.program_under_test import ProgramUnderTest, read_emitted
from explorer.devices.runs import emulated_runs
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.presets.published import PRESETS

H200 = known_gpu("NVIDIA H200")

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
    (
        Problem(8, 37, DType.BF16, Op.LOG_SOFTMAX_BACKWARD, scale=0.5),
        Config(threads=64, threads_per_row=2, staging="span", cache_holds="input"),
    ),
]


@pytest.fixture
def write(tmp_path):
    def written(source):
        path = tmp_path / "mine.cu"
        path.write_text(source)
        return path

    return written


@pytest.mark.parametrize("main", [False, True], ids=["bare", "with main"])
@pytest.mark.parametrize(("problem", "config"), CONFIGS)
def test_a_file_is_launched_as_its_config_is(problem, config, main, write):
    variant = emit(problem, config, main=main)
    read = read_emitted(write(variant.source))
    assert not read.is_edited
    own = ProgramUnderTest.of(variant)
    assert read.launches(problem) == own.launches(problem) == variant.launches
    assert read.scratch_bytes(problem) == variant.scratch_bytes and read.host == AS_EMITTED
    assert (read.config, read.any_alignment, read.file) == (config, own.any_alignment, "mine.cu")


def test_what_was_edited_counts(write):
    source = emit(*CONFIGS[0]).source
    edited = source.replace("kThreads = 256;", "kThreads = 128;").replace("_kernel", "_mine")
    read = read_emitted(write(edited))
    assert read.config.threads == 128 and read.config.rows_per_block == 2
    assert read.launches(Problem(7, 512))[0].entry == "softmax_f32_512_mine"
    verdict = Emulator("sm_90").verify(read)
    assert verdict.status is Status.VERIFIED


@pytest.mark.sampled(3)
def test_a_main_program_that_was_edited_is_not_checked_and_said_not_to_be(write):
    """The kernel is launched as the header says, and judged."""
    source, old = emit(*CONFIGS[0], main=True).source, "const int launches = 100;"
    assert source.count(old) == 1
    read = read_emitted(write(source.replace(old, "const int launches = 10;")))
    assert read.host.unknown == "it is not as emitted outside of launch() and its sizes"
    assert Emulator("sm_90").verify(read).status is Status.VERIFIED
    assert read_emitted(write(source)).host == AS_EMITTED


def test_launches_that_were_edited_in_the_header_alone_are_not_those_of_the_host_part(write):
    source = emit(*CONFIGS[0]).source
    old = "//   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock"
    assert source.count(old) == 1
    read = read_emitted(write(source.replace(old, "//   blocks = rows / kRowsPerBlock")))
    assert read.host.fault and read.launches(Problem(7, 512))[0].grid == 1
    assert Emulator("sm_90").verify(read).status is Status.WRONG


@pytest.mark.parametrize(("problem", "config"), CONFIGS)
def test_a_file_of_a_version_that_wrote_no_launches_is_launched_as_its_config_is(
    problem, config, write
):
    source = emit(problem, config).source
    start, end = source.index("// Launch:"), source.index("// Emit again:")
    read = read_emitted(write(source[:start] + source[end:]))
    assert read.launches(problem) == launches(problem, config)
    assert read.scratch_bytes(problem) == scratch_bytes(problem, config)


GUARDED = "#ifndef __CUDACC_RTC__\n#include <cmath>\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  __syncthreads();", "#ifdef __CUDACC_RTC__\n  __syncthreads();\n#endif"),
        ("  __syncthreads();", "  __syncthreads();\n#ifndef __CUDACC_RTC__\n  input += 1;\n#endif"),
        ("  __syncthreads();", "#ifndef __NVCC__\n  __syncthreads();\n#endif"),
        ("namespace softmax", GUARDED + "#define fmaxf fminf\n#endif\nnamespace softmax"),
        ("  __syncthreads();", "#ifdef EXIT_SUCCESS\n  __syncthreads();\n#endif"),
        ("  __syncthreads();", "#if __has_include(<cmath>)\n  __syncthreads();\n#endif"),
        ("  __syncthreads();", "#if __CUDA_ARCH__ != 900\n  __syncthreads();\n#endif"),
        ("  __syncthreads();", "#ifndef __CUDACC_R\\\nTC__\n#else\n  __syncthreads();\n#endif"),
        ("  __syncthreads();", "%:ifdef EXIT_SUCCESS\n  __syncthreads();\n%:endif"),
        ("  __syncthreads();", "#if 1 - 1\n  __syncthreads();\n#endif"),
    ],
)
def test_text_that_nvcc_alone_would_compile_is_refused(old, new, write):
    """A barrier that is there for NVRTC alone must not be called verified."""
    source = emit(*CONFIGS[0]).source
    assert old in source
    with pytest.raises(InvalidInput, match="nvcc may compile another kernel"):
        read_emitted(write(source.replace(old, new, 1)))


def test_text_that_no_compiler_or_each_compiles_is_allowed(write):
    source = emit(*CONFIGS[0]).source
    tried = "#if 0\n  return;\n#else\n  __syncthreads();\n#endif"
    read = read_emitted(write(source.replace("  __syncthreads();", tried, 1)))
    assert read.problem == CONFIGS[0][0]


@pytest.mark.parametrize("name", ['"mine.h"', "</dev/zero>", "<../mine.h>", "MINE", '"/tmp/fifo"'])
def test_an_include_of_another_file_is_refused(name, write):
    barrier = "  __syncthreads();"
    source = emit(*CONFIGS[0]).source.replace(barrier, f"#include {name}\n{barrier}", 1)
    with pytest.raises(InvalidInput, match="no header of CUDA's"):
        read_emitted(write(source))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--bogus 3", "'--bogus' is no option"),
        ("--cols 64", "--cols stands twice"),
        ("--input-stride 99999999999999999999", "input_stride is"),
        ("--scale warm", "scale is 'warm'"),
        ("--rows", "rows"),
        ("5", "'5' is no option"),
    ],
)
def test_an_option_that_the_head_cannot_have_is_refused(more, says, write):
    source = emit(*CONFIGS[0]).source
    line = next(line for line in source.splitlines() if line.startswith("//   explorer emit "))
    with pytest.raises(InvalidInput, match=re.escape(says)):
        read_emitted(write(source.replace(line, f"{line} {more}")))


def test_rows_and_blocks_that_were_edited_count(write):
    source = emit(*CONFIGS[3]).source
    edited = source.replace("kRowsPerThread = 2;", "kRowsPerThread = 1;")
    edited = edited.replace("kBlocksPerSm = 2;", "kBlocksPerSm = 4;")
    read = read_emitted(write(edited))
    assert (read.config.rows_per_thread, read.config.persistent) == (1, 4)


def test_kernels_have_the_names_by_which_the_header_launches_them(write):
    source = emit(*CONFIGS[5]).source
    with pytest.raises(InvalidInput, match="launches softmax_f32_512_exp_kernel, which is no"):
        read_emitted(write(source.replace("softmax_f32_512_exp_kernel(\n", "mine_kernel(\n", 1)))
    renamed = read_emitted(write(source.replace("_exp_kernel", "_mine")))
    assert renamed.launches(CONFIGS[5][0])[1].entry == "softmax_f32_512_mine"
    assert Emulator("sm_90").verify(read_emitted(write(source))).status is Status.VERIFIED


def test_an_edit_that_breaks_it_is_found(write):
    source = emit(*CONFIGS[0]).source
    read = read_emitted(write(source.replace("kThreadsPerRow = 64;", "kThreadsPerRow = 32;")))
    assert Emulator("sm_90").verify(read).status is Status.VERIFIED
    shifted = source.replace("  value = reduce_lanes<32>(value, combine);\n", "", 1)
    assert shifted != source
    assert Emulator("sm_90").verify(read_emitted(write(shifted))).status is Status.WRONG


@pytest.mark.parametrize(
    ("number", "old", "new", "says"),
    [
        (6, "--mask lengths", "--mask causal", "--mask causal, but its Launch line passes lengths"),
        (6, "--mask lengths", "", "--mask none, but its Launch line passes lengths"),
        (
            8,
            "--mask additive --mask-rows 1",
            "--mask lengths",
            "passes mask, as for --mask additive",
        ),
        (7, "--mask causal --mask-rows 4", "", "passes mask_rows, as for --mask causal"),
        (0, "--cols 512", "--cols 512 --mask lengths", "passes none of lengths, mask, mask_rows"),
    ],
)
def test_a_mask_that_the_launch_line_is_not_for_is_named(number, old, new, says, write):
    source = emit(*CONFIGS[number]).source
    assert old in source
    edited = source.replace(old, new)
    line = next(n for n, text in enumerate(edited.splitlines(), 1) if "explorer emit" in text)
    with pytest.raises(InvalidInput) as refusal:
        read_emitted(write(edited))
    assert says in str(refusal.value) and f"in line {line}, or mend" in str(refusal.value)


def test_line_ends_and_a_mark_of_an_editor_say_nothing(tmp_path):
    source = emit(*CONFIGS[0]).source
    path = tmp_path / "mine.cu"
    for mark, end in ((b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n"), (b"\xef\xbb\xbf", b"\r\n")):
        path.write_bytes(mark + source.encode().replace(b"\n", end))
        read = read_emitted(path)
        assert read.source == source and read.host == AS_EMITTED and not read.is_edited


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("//   explorer emit", "//   explored", "no 'explorer emit' line"),
        ("kThreads = 256;", "kThreads = threads();", "which is what explorer evaluates"),
        ("kThreads = 256;", "kThreads = kThreads;", "is defined by itself"),
        ("kThreads = 256;", "kThreads = 100;", "multiple of 32"),
        ("kThreads = 256;", "kThreads = 2147483648;", "from 1 to 1024"),
        ("kThreadsPerRow = 64;", "kThreadsPerRow = 96;", "must divide threads"),
        ("kThreadsPerRow = 64;", "kThreadsPerRow = 0;", "from 1 to 1024"),
        ("using Word = float4;", "using Word = Wide;", "what one access moves"),
        ("long long rows)", "long long rows, int more)", "its header passes (input, output, rows)"),
        ("__global__", "__device__", "it has no __global__ function, and its header says that"),
        ("--cols 512", "--cols many", "cols is 'many'; it must be a whole number"),
        ("--cols 512", '--cols 512 "', "must name a config as JSON"),
        ("--cols 512", "--cols 0", "cols is '0'"),
        ('"threads_per_row":64', '"algorithm":"nope"', "it must be one of three-pass"),
        ('"threads_per_row":64', '"threads_per_row":-64', "from 1 to 1024"),
        ('"threads_per_row":64', "[" * 100_000, "config is not JSON"),
        ("//   blocks = (rows", "//   tiles = (rows", "names no blocks"),
        ("//   blocks = (rows", "//   blocks are (rows", "is not understood"),
        ("//   blocks = (rows", "//   blocks = f(rows", "which is what explorer evaluates"),
        ("//   blocks = (rows", "//   blocks = (lines", "lines is not known"),
        ("- 1) / kRowsPerBlock", "- 1) / (rows - rows)", "divides by 0"),
    ],
)
def test_refusals_say_what_is_missing(old, new, says, write):
    source = emit(*CONFIGS[0]).source
    assert old in source
    with pytest.raises(InvalidInput) as refusal:
        read_emitted(write(source.replace(old, new)))
    assert says in str(refusal.value)


BLOCKS = "//   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock"
A_GRID = "CUDA allows 1 to 2147483647 blocks of a grid: mend that"
A_CLUSTER = "CUDA allows 1 to 16 blocks of a cluster: mend that"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (BLOCKS, "//   blocks = rows * 1000000000", "blocks is 8000000000 at rows = 8, cols = 512"),
        (BLOCKS, "//   blocks = 2147483648", A_GRID),
        (BLOCKS, "//   blocks = rows - 9", f"blocks is -1 at rows = 8, cols = 512; {A_GRID}"),
        (BLOCKS, "//   blocks = 0", f"blocks is 0 at rows = 8, cols = 512; {A_GRID}"),
        (BLOCKS, "//   blocks = " + "(" * 300 + "1" + ")" * 90, "is no expression"),
        (", kThreads>>>", ", 0>>>", "the block is 0 at rows = 8"),
        (", kThreads>>>", ", 1000000000>>>", "CUDA allows 1 to 1024 threads of a block"),
        (
            BLOCKS,
            f"{BLOCKS}\n//   cluster = 0",
            "cluster is 0 at rows = 8",
        ),
        (BLOCKS, f"{BLOCKS}\n//   cluster = 1000000", A_CLUSTER),
        (BLOCKS, f"{BLOCKS}\n//   cluster = 0 - 2", "cluster is -2"),
        (BLOCKS, f"{BLOCKS}\n//   blocks_per_sm = 0 - 2", "blocks_per_sm is -2"),
        (BLOCKS, f"{BLOCKS}\n//   shared = 0 - 8", "shared is -8 at rows"),
        (BLOCKS, f"{BLOCKS}\n//   shared = 1000000000000", "allows 0 to 232448 bytes of shared"),
        (BLOCKS, f"{BLOCKS}\n//   scratch = 0 - 8", "scratch is -8 at rows = 8"),
        (BLOCKS, f"{BLOCKS}\n//   scratch = 1000000000000000000", "takes 0 to 2199023255552 bytes"),
    ],
)
def test_launches_that_no_gpu_makes_are_refused_with_the_limit(old, new, says, write):
    source = emit(*CONFIGS[0]).source
    assert old in source
    with pytest.raises(InvalidInput) as refusal:
        read_emitted(write(source.replace(old, new, 1)))
    assert says in str(refusal.value) and str(refusal.value).startswith("the header of mine.cu: ")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("new", "says"),
    [
        ("//   blocks = rows * 1000000", "the emulator takes 1 to 4194304 blocks"),
        (f"{BLOCKS}\n//   scratch = 5000000000", "takes 0 to 1073741824 bytes"),
        (f"{BLOCKS}\n//   scratch = rows % 9 / 8 * 1000000000", "takes 0 to 536870912 bytes"),
        (f"{BLOCKS}\n//   scratch = rows / 1000 * 400000000", "takes 0 to 2199023255552 bytes"),
    ],
)
def test_launches_that_would_never_be_emulated_to_the_end_are_refused(new, says, write):
    read = read_emitted(write(emit(*CONFIGS[0]).source.replace(BLOCKS, new)))
    with pytest.raises(InvalidInput) as refusal:
        Emulator("sm_90").verify(read)
    assert says in str(refusal.value) and str(refusal.value).startswith("the header of mine.cu: ")


def test_a_header_that_fails_at_other_cols_is_named(write):
    """The columns that a kernel is tried at, beside its own, are chosen by its shared memory."""
    source = emit(*CONFIGS[1]).source
    shared = next(line for line in source.splitlines() if line.startswith("//   shared = "))
    spoiled = "//   shared = 8192 / max(0, 1 - cols / 1000)"
    read = read_emitted(write(source.replace(shared, spoiled)))
    with pytest.raises(InvalidInput, match=r"^the header of mine.cu: .* divides by 0"):
        emulated_runs(read)


def test_more_cols_than_shared_memory_holds_are_refused(write):
    read = read_emitted(write(emit(*CONFIGS[1]).source)).at_cols(200_000)
    with pytest.raises(InvalidInput, match=r"0 to 232448 .* or ask for fewer --cols"):
        Emulator("sm_90").verify(read)


def test_other_cols(write, tmp_path):
    static = read_emitted(write(emit(*CONFIGS[0]).source))
    with pytest.raises(InvalidInput, match="512 columns only"):
        static.at_cols(500)
    run_time = read_emitted(write(emit(*CONFIGS[1]).source)).at_cols(512)
    assert run_time.cols == 512 and run_time.any_alignment
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_emitted(tmp_path / "none.cu")


BOMB = """
template <int N> struct Q { static constexpr long long a = Q<N - 1>::a + N; };
template <> struct Q<0> { static constexpr long long a = 1; };
template <int D, int K> struct Tree {
  static constexpr int v = Tree<D - 1, 2 * K>::v + Tree<D - 1, 2 * K + 1>::v;
};
template <int K> struct Tree<0, K> { static constexpr int v = 1; };
static_assert(Tree<24, 1>::v > 0, "");
"""
"""A text that keeps a compiler busy for minutes."""


def test_a_text_that_never_compiles_is_unverified_in_time(write, monkeypatch):
    limited = partial(compile_in_time, limit_s=1.0)
    monkeypatch.setattr("explorer.devices.emulated.emulator.compile_in_time", limited)
    source = emit(*CONFIGS[0]).source.replace("namespace softmax", f"{BOMB}\nnamespace softmax", 1)
    start = monotonic()
    verdict = Emulator("sm_90").verify(read_emitted(write(source)))
    assert verdict.status is Status.UNVERIFIED
    assert "NVRTC was not done with it after 1 s" in verdict.sentence
    assert monotonic() - start < 10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_files_of_presets_can_be_edited_and_judged(preset, write):
    """Those of single elements have no vectors, those of a thread a row nobody to share it with."""
    for cols in (37, 4096):
        problem = Problem(512, cols, preset.dtypes[0], preset.ops[0])
        if preset.fault(problem, H200) is None:
            source = emit(problem, preset.config(problem, H200)).source
            read = read_emitted(write(source))
            assert read.config == preset.config(problem, H200)
            assert read.host == AS_EMITTED and not read.is_edited
            assert read_emitted(write(source.replace("maximum", "largest"))).is_edited
