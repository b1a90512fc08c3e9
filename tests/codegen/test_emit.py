"""What templates emit: complete, deterministic, readable."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from covering import covering
from jinja2 import StrictUndefined
from space_sample import space_sample

from explorer.codegen.units import emit, library
from explorer.codegen.variant import MAIN_MACRO
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")
REPOSITORY = Path(__file__).parents[2]


def test_output_is_a_function_of_problem_and_config():
    problem = Problem(8192, 4096)
    assert emit(problem, Config()) == emit(problem, Config())


def test_rows_do_not_change_the_code():
    """Rows are a run-time argument: one kernel serves every number of them."""
    few, many = (emit(Problem(rows, 4096), Config()) for rows in (3, 8192))
    assert few.code == many.code


def test_undefined_names_in_templates_are_errors():
    assert library().environment.undefined is StrictUndefined


def test_header_names_the_command_that_emits_it_again():
    config = Config(threads=512, threads_per_row=512, exp="ex2.approx")
    source = emit(Problem(8192, 4096), config).source
    line = next(line for line in source.splitlines() if "explorer emit" in line)
    told = line.split("'")[1]
    assert Config.from_json(told) == config
    assert "--cols 4096 --rows 8192 --dtype f32" in line


def test_digest_ignores_header_and_host_but_not_what_the_gpu_runs():
    problem = Problem(8192, 4096)
    base = emit(problem, Config(), main=True)
    for text in ("explorer emit", "#include <vector>", "cudaError_t", "int main"):
        assert text in base.source
        assert text not in base.code
    assert "__global__" in base.code
    assert base.digest == emit(problem, Config()).digest
    assert base.digest != emit(problem, Config(exp="expf")).digest
    assert base.digest != emit(problem, Config(threads=512)).digest


KINDS = {
    "bf16 to f32": {"dtype": DType.BF16, "out_dtype": DType.F32},
    "f32 to f16": {"out_dtype": DType.F16},
    "bf16 to f32, gaps": {"dtype": DType.BF16, "out_dtype": DType.F32, "gap": 8},
    "gaps": {"gap": 3},
    "in place": {"in_place": True},
    "f64 in place, gaps": {"dtype": DType.F64, "in_place": True, "gap": 2},
    "log": {"op": Op.LOG_SOFTMAX},
    "log, scaled, gaps, f64": {"op": Op.LOG_SOFTMAX, "scale": 0.5, "gap": 3, "dtype": DType.F64},
    "causal, scaled, bf16": {"mask": Mask.CAUSAL, "scale": 0.5, "dtype": DType.BF16},
    "log of lengths, gaps": {"op": Op.LOG_SOFTMAX, "mask": Mask.LENGTHS, "gap": 8},
    "additive, scaled, f64": {"mask": Mask.ADDITIVE, "scale": 2.0, "dtype": DType.F64},
    "additive in place, f16": {"mask": Mask.ADDITIVE, "in_place": True, "dtype": DType.F16},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [4096, 4097, 37, 1])
@pytest.mark.parametrize("dtype", list(DType))
def test_emitted_code_is_clean_under_clang_format(cols, dtype, tmp_path):
    """1 and 37 columns leave most of a vector empty; 4097 has misaligned rows."""
    check_format(Problem(64, cols, dtype), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [4096, 37])
@pytest.mark.parametrize("kind", KINDS)
def test_code_of_every_kind_is_clean_under_clang_format(cols, kind, tmp_path):
    fields = dict(KINDS[kind])
    stride = cols + fields.pop("gap", 0)
    check_format(Problem(64, cols, input_stride=stride, output_stride=stride, **fields), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 4096, op=Op.SOFTMAX_BACKWARD),
        Problem(64, 37, DType.BF16, op=Op.SOFTMAX_BACKWARD, scale=0.5),
        Problem(64, 4097, DType.F64, op=Op.LOG_SOFTMAX_BACKWARD),
        Problem(64, 999, DType.F16, Op.LOG_SOFTMAX_BACKWARD, DType.F32, output_stride=1003),
        Problem(96, 1000, inner=48),
        Problem(93, 1000, DType.BF16, Op.LOG_SOFTMAX, inner=31, scale=2.0),
        Problem(96, 1000, DType.F64, inner=48, in_place=True),
        Problem(96, 9000, DType.F16, Op.SOFTMAX_BACKWARD, DType.F32, inner=48),
        Problem(96, 1000, DType.BF16, Op.CROSS_ENTROPY, inner=48, also="lse,maximum,log_sum"),
        Problem(93, 1000, op=Op.CROSS_ENTROPY_BACKWARD, inner=31, z_loss=0.1, in_place=True),
        Problem(96, 21, op=Op.CROSS_ENTROPY_WITH_GRADIENT, inner=48, label_smoothing=0.1),
    ],
    ids=str,
)
def test_code_of_gradients_and_columns_is_clean_under_clang_format(problem, tmp_path):
    check_format(problem, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 4096, op=Op.LOGSUMEXP),
        Problem(64, 37, DType.BF16, Op.LOGSUMEXP, DType.BF16, scale=0.5),
        Problem(64, 4097, DType.F64, Op.LOGSUMEXP, mask=Mask.LENGTHS),
        Problem(64, 999, DType.F16, Op.LOGSUMEXP, input_stride=1003, output_stride=3),
        Problem(64, 1000, op=Op.LOGSUMEXP, mask=Mask.CAUSAL, mask_rows=32),
        Problem(64, 1000, DType.F16, Op.LOGSUMEXP, mask=Mask.ADDITIVE, scale=2.0),
        Problem(96, 1000, DType.BF16, Op.LOGSUMEXP, inner=48, also="maximum,log_sum"),
        Problem(64, 4096, DType.BF16, Op.LOG_PROB, also="lse,entropy,rank,argmax"),
        Problem(64, 4097, op=Op.LOG_PROB, ids_per_row=3, ids_stride=4, scale=2.0),
        Problem(93, 1000, DType.F64, Op.LOGSUMEXP, inner=31, scale=2.0),
    ],
    ids=str,
)
def test_code_of_one_result_a_row_is_clean_under_clang_format(problem, tmp_path):
    check_format(problem, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [8200, 8193])
@pytest.mark.parametrize("kind", ["f64 in place, gaps", "bf16 to f32", "log"])
def test_code_of_clusters_is_clean_under_clang_format(cols, kind, tmp_path):
    fields = dict(KINDS[kind])
    stride = cols + fields.pop("gap", 0)
    problem = Problem(64, cols, input_stride=stride, output_stride=stride, **fields)
    check_format(problem, tmp_path, {"cluster": (2, 16)})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 16384, DType.F64),
        Problem(64, 16384, DType.BF16, Op.LOG_SOFTMAX, scale=0.5),
        Problem(64, 8193, DType.F64, Op.LOG_SOFTMAX, scale=0.5, input_stride=8195),
        Problem(64, 8193, DType.BF16),
    ],
    ids=str,
)
def test_code_of_two_launches_is_clean_under_clang_format(problem, tmp_path):
    check_format(problem, tmp_path, {"launches": ("two", "two-overlapped")})


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("cols", [8192, 1003])
def test_code_of_asynchronous_copies_is_clean_under_clang_format(cols, dtype, tmp_path):
    check_format(Problem(64, cols, dtype), tmp_path, {"staging": ("async",)})


def test_the_sample_is_clean_under_clang_format(tmp_path):
    """The quick twin of the tests of formats above."""
    check_formats([(kernel.problem, kernel.config) for kernel in space_sample()], tmp_path)


def check_format(problem, folder, fixed=None):
    configs = covering(Space(problem, H200, fixed))
    check_formats([(problem, config) for config in configs], folder)


def check_formats(variants, folder):
    """Assert that clang-format leaves the code of each (problem, config) as it is."""
    beside_python = Path(sys.executable).parent  # of a virtual environment that is not activated
    formatter = shutil.which(
        "clang-format", path=f"{beside_python}{os.pathsep}{os.environ['PATH']}"
    )
    if formatter is None:
        pytest.skip("clang-format is not installed (extra: dev)")
    shutil.copy(REPOSITORY / ".clang-format", folder)
    files = [folder / f"{number}.cu" for number in range(len(variants))]
    sources = [emit(*one, main=number % 4 > 0).source for number, one in enumerate(variants)]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source)
    subprocess.run([formatter, "-i", *files], cwd=folder, check=True)
    for file, source, (_, config) in zip(files, sources, variants, strict=True):
        assert file.read_text() == source, config.to_json()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_a_main_program_changes_nothing_but_the_host_part(kernel):
    bare = emit(kernel.problem, kernel.config)
    whole = emit(kernel.problem, kernel.config, main=True)
    assert bare.code == whole.code and bare.launches == whole.launches
    assert "int main" in whole.source and "int main" not in bare.source
    assert MAIN_MACRO in whole.source and MAIN_MACRO not in bare.source
    assert "#include <vector>" not in bare.source


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_the_sample_has_no_template_leftovers(kernel):
    check_leftovers(emit(kernel.problem, kernel.config, main=True).source)


@pytest.mark.exhaustive
def test_emitted_code_has_no_template_leftovers():
    rng = random.Random(5)
    for dtype in DType:
        space = Space(Problem(64, 1000, dtype), H200)
        for _ in range(20):
            check_leftovers(emit(space.problem, space.sample(rng)).source)


def check_leftovers(source):
    assert "{{" not in source and "{%" not in source
    assert "\n\n\n" not in source
    assert not any(line.endswith(" ") for line in source.splitlines())
