"""Kernels of every dtype and layout compile for every architecture; their host part does too."""

import pytest
from as_planned import compile_host, in_namespace

from explorer.codegen import emit
from explorer.compile import CompilePool, Compiler, KernelCache
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.space import sampled

KINDS = {
    "f64": Problem(64, 1000, DType.F64),
    "bf16 to f32": Problem(64, 1000, DType.BF16, out_dtype=DType.F32),
    "f32 to f16, ragged": Problem(64, 1001, out_dtype=DType.F16),
    "f16 to bf16": Problem(64, 1000, DType.F16, out_dtype=DType.BF16),
    "gaps": Problem(64, 1000, input_stride=1008, output_stride=1004),
    "ragged gaps": Problem(64, 1000, DType.BF16, out_dtype=DType.F32, output_stride=1003),
    "in place": Problem(64, 1000, in_place=True),
    "f64 in place, gaps": Problem(
        64, 1000, DType.F64, input_stride=1001, output_stride=1001, in_place=True
    ),
}


def facts(problem: Problem, config: Config) -> str:
    """Static asserts that compare the emitted constants with WorkSplit."""
    split = WorkSplit(problem, config)
    lines = [f"static_assert(kWidth == {split.width});"]
    if problem.output_dtype is not problem.dtype:
        lines.append(f"static_assert(sizeof(OutputWord) == {split.output_word_bytes});")
        lines.append("static_assert(sizeof(OutputVector) == kOutputWords * sizeof(OutputWord));")
    if config.static_cols:
        lines.append(f"static_assert(kRowVectors == {split.row_vectors});")
    return in_namespace(emit(problem, config).source, lines)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_kind_compiles(arch, tmp_path):
    """Three configs for sm_90, and another one for each other architecture.

    What is emitted does not depend on the architecture: what can differ is what the headers have
    of a dtype, and what the assembler takes.
    """
    number, seed = (3, 0) if arch == "sm_90" else (1, int(arch.removeprefix("sm_")))
    with CompilePool(Compiler(arch, KernelCache(tmp_path))) as pool:
        futures = [
            pool.submit(emit(problem, config).source + facts(problem, config))
            for problem in KINDS.values()
            for config in sampled(Space(problem, known_gpu_for(arch)), number, seed)
        ]
        assert all(future.result().cubin for future in futures)


def test_nothing_is_read_past_the_coherent_path_in_place(tmp_path):
    """Without __restrict__ the compiler may not choose read-only loads by itself."""
    compiler = Compiler("sm_90", KernelCache(tmp_path))
    ptx = {
        in_place: compiler.compile(emit(Problem(64, 4096, in_place=in_place), Config()).source).ptx
        for in_place in (False, True)
    }
    assert "ld.global.nc" in ptx[False]
    assert "ld.global.nc" not in ptx[True]


def test_a_wide_output_is_stored_in_whole_words(tmp_path):
    problem = Problem(64, 4096, DType.BF16, out_dtype=DType.F32)
    ptx = Compiler("sm_90", KernelCache(tmp_path)).compile(emit(problem, Config()).source).ptx
    assert ptx.count("st.global.v4.f32") == 2 * WorkSplit(problem, Config()).slots


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["f64", "ragged gaps", "f64 in place, gaps"])
def test_the_host_part_compiles(kind, tmp_path):
    compile_host(emit(KINDS[kind], Config(cache="shared", static_cols=False)).source, tmp_path)
