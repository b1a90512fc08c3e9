"""Kernels of rows over a middle axis compile for every architecture, as Python plans them."""

import pytest
from as_planned import asserted

from explorer.compile import CompilePool, Compiler
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.space import sampled

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

KINDS = list(zip(Op, (DType.F32, DType.BF16, DType.F64, DType.F16), strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("op", "dtype"), KINDS)
def test_columns_compile_as_planned(arch, op, dtype, cache):
    problem = Problem(96, 300, dtype, op, inner=48)
    configs = sampled(Space(problem, known_gpu_for(arch)), 8)
    with CompilePool(Compiler(arch, cache)) as pool:
        kernels = [pool.submit(asserted(problem, config)) for config in configs]
        for config, kernel in zip(configs, kernels, strict=True):
            declared = kernel.result().resources.static_shared_bytes
            scratch = WorkSplit(problem, config).scratch_bytes
            assert 0 <= scratch - declared <= 32, config.to_json()
