"""Kernels of rows over a middle axis compile for every architecture, as Python plans them."""

import pytest

from explorer.codegen import emit
from explorer.compile import CompilePool, Compiler, KernelCache
from explorer.dtype import DType
from explorer.gpu_spec import known_gpu_for
from explorer.op import Op
from explorer.problem import Problem
from explorer.space import Space
from explorer.space.covering import sampled
from explorer.work_split import WorkSplit

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

KINDS = list(zip(Op, (DType.F32, DType.BF16, DType.F64, DType.F16), strict=True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def asserted(problem, config):
    """The source, with static asserts that compare its constants with WorkSplit."""
    split, variant = WorkSplit(problem, config), emit(problem, config)
    facts = [f"kWidth == {split.width}", f"kRowsPerBlock == {split.block_rows}"]
    if config.cache == "registers":
        facts.append(f"kSlots == {split.slots}")
    lines = [f'static_assert({fact}, "as in WorkSplit");' for fact in facts]
    name = variant.launches[0].entry.removesuffix("_kernel")
    return "\n".join([variant.source, f"namespace {name} {{", *lines, "}", ""])


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
            assert 0 <= declared - scratch < 16, config.to_json()
