"""Gradients of rows compile for every architecture, as Python plans them; so does their host."""

import pytest
from as_planned import asserted, compile_host

from explorer.codegen import emit
from explorer.compile import CompilePool, Compiler
from explorer.evaluate.profile import sass_of
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.covering import covering_array

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

KINDS = {
    "f32": Problem(64, 1000, op=Op.SOFTMAX_BACKWARD),
    "bf16, ragged, scaled": Problem(64, 1001, DType.BF16, Op.LOG_SOFTMAX_BACKWARD, scale=2.0),
    "f64": Problem(64, 1000, DType.F64, Op.LOG_SOFTMAX_BACKWARD),
    "f16 to f32, gaps": Problem(
        64, 1000, DType.F16, Op.SOFTMAX_BACKWARD, DType.F32, output_stride=1003
    ),
}

SPLITS = {"threads": (96, 256, 1024), "threads_per_row": (1, 8, 32, 96, 256)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_choice_compiles_as_planned(arch, kind, cache):
    problem = KINDS[kind]
    space = Space(problem, known_gpu_for(arch))
    configs = covering_array(Space(problem, space.gpu, {**space.parameters, **SPLITS}))
    with CompilePool(Compiler(arch, cache)) as pool:
        kernels = [pool.submit(asserted(problem, config, "kRowVectors")) for config in configs]
        for config, kernel in zip(configs, kernels, strict=True):
            declared = kernel.result().resources.static_shared_bytes
            padding = declared - WorkSplit(problem, config).static_bytes
            assert 0 <= padding < 16, config.to_json()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("dtype", "vector_bytes", "registers"),
    [
        (DType.F32, 4, 128),
        (DType.F32, 16, 128),
        (DType.BF16, 2, 128),
        (DType.BF16, 4, 64),
        (DType.BF16, 16, 64),
    ],
)
def test_both_matrices_are_kept_in_registers(dtype, vector_bytes, registers, cache):
    """Of 64 elements each; those of 16 bits that were loaded alone take a register each."""
    problem = Problem(64, 4096, dtype, Op.SOFTMAX_BACKWARD)
    config = Config(threads=64, threads_per_row=64, vector_bytes=vector_bytes, cache_holds="input")
    assert WorkSplit(problem, config).cached_registers == registers
    resources = Compiler("sm_90", cache).compile(emit(problem, config).source).resources
    assert resources.spill_store_bytes == 0
    assert registers <= resources.registers


def test_accesses_of_full_width_survive_compilation(cache):
    """16-byte loads of both matrices, and stores, for aligned rows and those that are not."""
    for cols in (4096, 4097):
        problem, config = Problem(64, cols, op=Op.SOFTMAX_BACKWARD), Config(cache_holds="input")
        ptx = Compiler("sm_90", cache).compile(emit(problem, config).source).ptx
        slots = WorkSplit(problem, config).slots
        # The compiler may write the loads out twice, for rows that are in step and for others.
        assert ptx.count("ld.global.nc.v4") >= 2 * slots
        assert ptx.count("st.global.v4") == slots


@pytest.mark.sampled(6)
@pytest.mark.parametrize("hint", ["default", "cs"])
@pytest.mark.parametrize(
    ("cols", "dtype", "threads_per_row", "vector_bytes"),
    [
        (32, DType.F32, 16, 8),
        (128, DType.F32, 16, 16),
        (33, DType.F32, 8, 4),
        (64, DType.BF16, 8, 8),
        (64, DType.BF16, 2, 16),
        (1024, DType.F32, 32, 16),
        (32, DType.F64, 16, 8),
    ],
)
def test_both_matrices_are_loaded_before_their_rows_are_summed(
    cols, dtype, threads_per_row, vector_bytes, hint, cache
):
    """Also the one that the sum of log_softmax's gradient does not need: its load would come late.

    As machine code has it: the compiler's last stage moves loads as well.
    """
    problem = Problem(1000, cols, dtype, Op.LOG_SOFTMAX_BACKWARD)
    config = Config(
        threads=128,
        threads_per_row=threads_per_row,
        vector_bytes=vector_bytes,
        cache_holds="input",
        load_hint=hint,
        store_hint=hint,
    )
    lines = sass_of(Compiler("sm_90", cache).compile(emit(problem, config).source).cubin)
    loads = [place for place, line in enumerate(lines) if "LDG" in line]
    exchanges = [place for place, line in enumerate(lines) if "SHFL" in line]
    assert len(loads) == 2 * WorkSplit(problem, config).slots
    assert max(loads) < min(exchanges)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_part_compiles(kind, tmp_path):
    config = Config(cache="shared", cache_holds="input", static_cols=kind == "f32")
    compile_host(emit(KINDS[kind], config).source, tmp_path)
