"""Two launches: what the second reads early, what it must not, and the host that starts it."""

import pytest
from as_planned import compile_host

from explorer.codegen import emit
from explorer.compile import Compiler
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu, known_gpu_for
from explorer.model.problem import Problem
from explorer.space import Space

TWO = {"threads": 512, "threads_per_row": 512, "cache": "none", "cache_holds": "input"}


def split(launches="two-overlapped", **choices):
    return Config(algorithm="online-block-max", launches=launches, unroll=2, **TWO, **choices)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64])
def test_a_row_is_loaded_before_the_wait_and_its_parts_after(dtype):
    """Parts change while the kernel runs: no load of them may be of memory that is only read."""
    variant = emit(Problem(4, 65536, dtype), split(load_hint="nc"))
    ptx = Compiler("sm_90").compile(variant.source).ptx
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("launches", ["two", "two-overlapped"])
@pytest.mark.parametrize("cols", [65536, 65537])
def test_the_host_part_compiles(launches, cols, tmp_path):
    compile_host(emit(Problem(4, cols, DType.BF16), split(launches)).source, tmp_path)
