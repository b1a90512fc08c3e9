"""What the compiler makes of emitted accesses and waits: in PTX, in registers, in machine code."""

import pytest

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.evaluate.profile import sass_of
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu, known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.ops import Op
from explorer.space import Space


@pytest.fixture(scope="module")
def compiled(cache):
    """Return the function that compiles a problem's config for sm_90."""
    return lambda problem, config=Config(): (  # noqa: B008  (it is frozen)
        Compiler("sm_90", cache).compile(emit(problem, config).source)
    )


def test_full_width_access_survives_compilation(compiled):
    """16-byte loads and stores in the PTX, for aligned and for misaligned rows."""
    for cols in (4096, 4097):
        kernel = compiled(Problem(64, cols))
        assert "ld.global.nc.v4" in kernel.ptx or "ld.global.v4" in kernel.ptx
        assert "st.global.v4" in kernel.ptx


@pytest.mark.parametrize(
    ("name", "hint", "expected"),
    [
        ("load_hint", "cs", "ld.global.cs.v4"),
        ("load_hint", "nc", "ld.global.nc.v4"),
        ("load_hint", "no-allocate", "L1::no_allocate.v4"),
        ("store_hint", "cs", "st.global.cs.v4"),
        ("store_hint", "cg", "st.global.cg.v4"),
    ],
)
def test_hints_reach_the_ptx(name, hint, expected, compiled):
    assert expected in compiled(Problem(64, 4096), Config(**{name: hint})).ptx


def test_nothing_is_read_past_the_coherent_path_in_place(compiled):
    """Without __restrict__ the compiler may not choose read-only loads by itself."""
    for in_place in (False, True):
        ptx = compiled(Problem(64, 4096, in_place=in_place)).ptx
        assert ("ld.global.nc" in ptx) is not in_place


def test_a_wide_output_is_stored_in_whole_words(compiled):
    problem = Problem(64, 4096, DType.BF16, out_dtype=DType.F32)
    slots = WorkSplit(problem, Config()).slots
    assert compiled(problem).ptx.count("st.global.v4.f32") == 2 * slots


def test_loads_under_a_limit_are_all_in_flight_at_once(compiled):
    """What hides elements comes after the last load."""
    problem = Problem(64, 4096, mask=Mask.CAUSAL)
    ptx = compiled(problem).ptx
    assert ptx.count("ld.global.nc.v4.f32") == WorkSplit(problem, Config()).slots
    assert ptx.rindex("ld.global") < ptx.index("selp.f32")


# ------------------------------------------------------------------ gradients


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
def test_both_matrices_are_kept_in_registers(dtype, vector_bytes, registers, compiled):
    """Of 64 elements each; those of 16 bits that were loaded alone take a register each."""
    problem = Problem(64, 4096, dtype, Op.SOFTMAX_BACKWARD)
    config = Config(threads=64, threads_per_row=64, vector_bytes=vector_bytes, cache_holds="input")
    assert WorkSplit(problem, config).cached_registers == registers
    resources = compiled(problem, config).resources
    assert resources.spill_store_bytes == 0
    assert registers <= resources.registers


def test_accesses_of_gradients_have_full_width_too(compiled):
    """16-byte loads of both matrices, and stores, for aligned rows and those that are not."""
    for cols in (4096, 4097):
        problem, config = Problem(64, cols, op=Op.SOFTMAX_BACKWARD), Config(cache_holds="input")
        ptx = compiled(problem, config).ptx
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
    cols, dtype, threads_per_row, vector_bytes, hint, compiled
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
    lines = sass_of(compiled(problem, config).cubin)
    loads = [place for place, line in enumerate(lines) if "LDG" in line]
    exchanges = [place for place, line in enumerate(lines) if "SHFL" in line]
    assert len(loads) == 2 * WorkSplit(problem, config).slots
    assert max(loads) < min(exchanges)


# ------------------------------------------------------------------ two launches

TWO = {"threads": 512, "threads_per_row": 512, "cache": "none", "cache_holds": "input"}


def split(launches="two-overlapped", **choices):
    return Config(algorithm="online-block-max", launches=launches, unroll=2, **TWO, **choices)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64])
def test_a_row_is_loaded_before_the_wait_and_its_parts_after(dtype, compiled):
    """Parts change while the kernel runs: no load of them may be of memory that is only read."""
    problem, config = Problem(4, 65536, dtype), split(load_hint="nc")
    variant, ptx = emit(problem, config), compiled(problem, config).ptx
    kernel = ptx[ptx.index(f".entry {variant.launches[1].entry}(") :]
    before, after = kernel.split("griddepcontrol.wait;")
    assert before.count("ld.global.nc") >= 2 and "st.global" not in before
    assert "ld.global" in after and "ld.global.nc" not in after
    assert [launch.overlaps for launch in variant.launches] == [False, True]


def test_launches_overlap_where_the_gpu_can():
    for arch, can in (("sm_80", False), ("sm_90", True), ("sm_120", True)):
        space = Space(Problem(4, 65536), known_gpu_for(arch))
        assert space.is_legal(split()) is can
        assert space.is_legal(split("two"))


def test_a_part_for_each_block():
    variant = emit(Problem(3, 65537), split())
    (first, second), parts = variant.launches, -(-65537 // (512 * 2 * 4))
    assert first.grid == second.grid == 3 * parts
    assert variant.scratch_bytes == 3 * parts * 8
    assert Space(Problem(3, 8192), known_gpu("NVIDIA H200")).broken_rule(split()) is None
