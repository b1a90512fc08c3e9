"""Every template path compiles for every architecture, and says in C++ what Python says."""

from concurrent.futures import Future
from functools import cache
from itertools import combinations

import pytest
from as_planned import in_namespace
from covering import covering
from paired_sizes import IN_PAIRS

from explorer.codegen import emit
from explorer.codegen.units import words
from explorer.compile import CompilePool, Compiler, Kernel
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")


def compiled(arch: str, problem: Problem, configs: list[Config], cache, extra="") -> list[Kernel]:
    with CompilePool(Compiler(arch, cache)) as pool:
        futures: list[Future[Kernel]] = []
        for config in configs:
            source = emit(problem, config).source
            futures.append(pool.submit(source + extra_of(problem, config) if extra else source))
        return [future.result() for future in futures]


def extra_of(problem: Problem, config: Config) -> str:
    """Static asserts that compare the emitted constants with WorkSplit."""
    split = WorkSplit(problem, config)
    facts = [f"kWidth == {split.width}", f"kRowsPerBlock == {config.rows_per_block}"]
    if config.static_cols:
        facts.append(f"kRowVectors == {split.row_vectors}")
    if config.cache == "registers":
        facts.append(f"kSlots == {split.slots}")
    if config.cache == "shared" and config.static_cols:
        kept = "FloatVector" if config.cache_holds == "exp" else "Vector"
        rows = "kStages" if config.stages > 1 else "kRowsPerBlock"
        facts.append(f"{rows} * kRowVectors * sizeof({kept}) == {split.cache_bytes}")
    source = emit(problem, config).source
    named = words(source)  # a kernel of one element at a time has no width
    facts = [fact for fact in facts if fact.split()[0] in named]
    lines = [f'static_assert({fact}, "as in WorkSplit");' for fact in facts]
    return in_namespace(source, lines)


COLS = (37, 4096)
"""37: shorter than most blocks, misaligned for every vector but the scalar."""

RAGGED = 4097


def cases():
    """Architectures, dtypes and columns, each two of them together; all three on sm_90.

    What is emitted does not depend on the architecture: what can differ is what the headers have
    of a dtype, and what the assembler takes: of f32 every second kernel is compiled for each, of
    the other types every fourth.
    """
    for i, arch in enumerate(ARCHS):
        for j, dtype in enumerate(DType):
            for k, cols in enumerate(COLS):
                if arch == "sm_90" or (i + j + k) % len(COLS) == 0:
                    yield arch, dtype, cols


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "dtype", "cols"), list(cases()))
def test_each_choice_compiles(arch, dtype, cols, cache):
    problem = Problem(64, cols, dtype)
    configs = covering(Space(problem, known_gpu_for(arch)))
    if arch != "sm_90":
        configs = configs[:: 2 if dtype is DType.F32 else 4]
    kernels = compiled(arch, problem, configs, cache)
    assert all(kernel.cubin and kernel.ptx for kernel in kernels)


def pairs_of(config):
    return set(combinations(config.as_dict().items(), 2))


@cache
def covering_pairs(cols):
    """Every pair of choices that ragged rows have; for whole ones, those that these have beside."""
    problem = Problem(64, cols)
    configs = covering(Space(problem, known_gpu_for("sm_90"), IN_PAIRS), strength=2)
    if cols == RAGGED:
        return configs
    met = set().union(*map(pairs_of, covering_pairs(RAGGED)))
    beside = []
    for config in configs:
        if pairs_of(config) - met:
            met |= pairs_of(config)
            beside.append(config)
    return beside


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [4096, RAGGED])
def test_each_pair_of_choices_compiles_as_planned(cols, cache):
    """For one architecture, pairs of choices; constants and scratch are those of WorkSplit.

    Whole rows have bulk copies, which ragged ones have not; each choice compiles for both above.
    """
    problem = Problem(64, cols)
    configs = covering_pairs(cols)
    kernels = compiled("sm_90", problem, configs, cache, extra="asserts")
    for config, kernel in zip(configs, kernels, strict=True):
        static = WorkSplit(problem, config).static_bytes
        padding = kernel.resources.static_shared_bytes - static  # the cache behind is aligned
        assert 0 <= padding < 16, config.to_json()


def test_full_width_access_survives_compilation(cache):
    """16-byte loads and stores in the PTX, for aligned and for misaligned rows."""
    for cols in (4096, 4097):
        (kernel,) = compiled("sm_90", Problem(64, cols), [Config()], cache)
        assert "ld.global.nc.v4" in kernel.ptx or "ld.global.v4" in kernel.ptx
        assert "st.global.v4" in kernel.ptx


@pytest.mark.parametrize(
    ("hint", "expected"),
    [("cs", "ld.global.cs.v4"), ("nc", "ld.global.nc.v4"), ("no-allocate", "L1::no_allocate.v4")],
)
def test_load_hints_reach_the_ptx(hint, expected, cache):
    (kernel,) = compiled("sm_90", Problem(64, 4096), [Config(load_hint=hint)], cache)
    assert expected in kernel.ptx


@pytest.mark.parametrize(
    ("hint", "expected"), [("cs", "st.global.cs.v4"), ("cg", "st.global.cg.v4")]
)
def test_store_hints_reach_the_ptx(hint, expected, cache):
    (kernel,) = compiled("sm_90", Problem(64, 4096), [Config(store_hint=hint)], cache)
    assert expected in kernel.ptx
