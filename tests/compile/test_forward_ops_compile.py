"""Kernels of log_softmax, scales and masks compile for every architecture; their hosts do too."""

import pytest
from as_planned import compile_host, in_namespace

from explorer.codegen import emit
from explorer.compile import CompilePool, Compiler, KernelCache
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Mask, Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.space import sampled

LOG = {"op": Op.LOG_SOFTMAX}

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

KINDS = {
    "log": Problem(64, 1000, **LOG),
    "log, ragged f16 to f32": Problem(64, 1001, DType.F16, out_dtype=DType.F32, **LOG),
    "scale, bf16": Problem(64, 1000, DType.BF16, scale=0.5),
    "scale and additive, ragged f64": Problem(64, 1001, DType.F64, scale=0.5, mask=Mask.ADDITIVE),
    "causal": Problem(64, 1000, mask=Mask.CAUSAL),
    "causal, ragged, repeated": Problem(64, 1001, DType.BF16, mask=Mask.CAUSAL, mask_rows=16),
    "log and lengths, gaps": Problem(
        64, 1000, input_stride=1008, output_stride=1004, mask=Mask.LENGTHS, **LOG
    ),
    "lengths in place": Problem(64, 1001, mask=Mask.LENGTHS, in_place=True),
    "additive, f16": Problem(64, 1000, DType.F16, mask=Mask.ADDITIVE),
    "additive in place": Problem(64, 1000, mask=Mask.ADDITIVE, in_place=True),
}


def facts(problem: Problem, config: Config) -> str:
    """A static assert that compares the bytes of the cache with WorkSplit."""
    if config.cache != "shared" or not config.static_cols:
        return ""
    split = WorkSplit(problem, config)
    real = "DoubleVector" if problem.dtype is DType.F64 else "FloatVector"
    kept = real if split.keeps_numbers else "Vector"
    fact = f"{split.block_rows} * kRowVectors * sizeof({kept}) == {split.cache_bytes}"
    return in_namespace(
        emit(problem, config).source, [f'static_assert({fact}, "as in WorkSplit");']
    )


def configs_of(number, problem, arch):
    """Of each kind three for sm_90, and one for the others, by turns with and without a cache.

    What is emitted does not depend on the architecture.
    """
    space = Space(problem, known_gpu_for(arch))
    cached = Space(problem, known_gpu_for(arch), {"cache": ("shared",)})
    if arch == "sm_90":
        return [*sampled(space, 2), *sampled(cached, 1)]
    return sampled((space, cached)[number % 2], 1, seed=number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_compiles(arch, tmp_path):
    with CompilePool(Compiler(arch, KernelCache(tmp_path))) as pool:
        futures = [
            pool.submit(emit(problem, config).source + facts(problem, config))
            for number, problem in enumerate(KINDS.values(), ARCHS.index(arch))
            for config in configs_of(number, problem, arch)
        ]
        assert all(future.result().cubin for future in futures)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_part_compiles(kind, tmp_path):
    config = Config(cache="shared", cache_holds="input", static_cols=len(kind) % 2 == 0)
    compile_host(emit(KINDS[kind], config).source, tmp_path)


def test_loads_under_a_limit_are_all_in_flight_at_once(tmp_path):
    """What hides elements comes after the last load."""
    problem = Problem(64, 4096, mask=Mask.CAUSAL)
    ptx = Compiler("sm_90", KernelCache(tmp_path)).compile(emit(problem, Config()).source).ptx
    assert ptx.count("ld.global.nc.v4.f32") == WorkSplit(problem, Config()).slots
    assert ptx.rindex("ld.global") < ptx.index("selp.f32")
