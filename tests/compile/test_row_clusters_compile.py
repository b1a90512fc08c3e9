"""Kernels whose clusters share rows compile, as Python plans them; their host part does too."""

import pytest
from as_planned import asserted, compile_host

from explorer.codegen import emit
from explorer.compile import CompilePool, Compiler
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.covering import covering_array


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "clusters"), [("sm_90", (2, 4, 8, 16)), ("sm_100", (16,)), ("sm_120", (8,))]
)
@pytest.mark.parametrize(("cols", "dtype"), [(16384, DType.F32), (8193, DType.BF16)])
def test_clusters_compile_as_planned(arch, clusters, cols, dtype, cache):
    problem = Problem(64, cols, dtype)
    configs = covering_array(Space(problem, known_gpu_for(arch), {"cluster": clusters}))
    with CompilePool(Compiler(arch, cache)) as pool:
        kernels = [pool.submit(asserted(problem, config, "kBlockVectors")) for config in configs]
        for config, kernel in zip(configs, kernels, strict=True):
            declared = kernel.result().resources.static_shared_bytes
            scratch = WorkSplit(problem, config).scratch_bytes
            assert 0 <= scratch - declared <= 32, config.to_json()


@pytest.mark.exhaustive
@pytest.mark.parametrize("static_cols", [True, False])
def test_the_host_part_compiles(static_cols, tmp_path):
    """Sixteen blocks a cluster and half of what an SM has of shared memory: both are asked for."""
    config = Config(cluster=16, cache="shared", static_cols=static_cols)
    source = emit(Problem(8, 401408), config).source
    assert "cudaFuncAttributeNonPortableClusterSizeAllowed" in source
    compile_host(source, tmp_path)
