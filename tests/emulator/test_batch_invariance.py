"""A row's bits do not depend on the number of rows."""

import numpy as np
import pytest
from covering import covering
from emulated_output import output_of
from virtual_arch import ARCH

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.reference.inputs import verification_inputs
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")

MANY, FEW = 19, 5
MANY_WIDE = 7
"""Of rows so wide that clusters share them, which take an emulator long."""


def first_rows(problem, config, arrays):
    """The bits of the first FEW rows."""
    variant = emit(problem, config)
    ptx = Compiler(ARCH).compile(variant.source).ptx
    kernel = EmulatedKernel.of(ptx, variant.launches, variant.scratch_bytes)
    output = output_of(kernel, problem, arrays)[:FEW]
    return np.ascontiguousarray(output).view(np.uint8)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cols", "dtype"), [(37, DType.F32), (1000, DType.BF16), (8193, DType.F16)]
)
def test_no_choice_makes_a_row_depend_on_the_others(cols, dtype):
    many = Problem(MANY if cols <= 1001 else MANY_WIDE, cols, dtype)
    arrays = verification_inputs(many)
    few = {name: array[:FEW] for name, array in arrays.items()}
    few_sizes = {"threads": (64, 256)} if cols > 1000 else {}
    for config in covering(Space(many, H200, few_sizes))[::3]:
        expected = first_rows(many, config, arrays)
        got = first_rows(many.resized(rows=FEW), config, few)
        assert (got == expected).all(), config.to_json(brief=True)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.SOFTMAX_BACKWARD])
@pytest.mark.parametrize("cols", [17, 512, 4096, 32000, 131072, 1048576])
def test_the_heuristic_can_be_without_regard_to_rows(cols, op, dtype, gpu):
    most = 30_000_000 if cols < 100 else 1_000_000
    problems = [Problem(rows, cols, dtype, op) for rows in (1, 8, 100, 30_000, most)]
    chosen = {config_for(problem, known_gpu(gpu), batch_invariant=True) for problem in problems}
    assert chosen == {config_for(problems[-1], known_gpu(gpu))}


@pytest.mark.parametrize("inner", [16, 48])
@pytest.mark.parametrize("cols", [100, 1000, 100_000])
def test_over_a_middle_axis_too(cols, inner):
    problems = [Problem(rows * inner, cols, inner=inner) for rows in (1, 8, 10_000)]
    chosen = {config_for(problem, H200, batch_invariant=True) for problem in problems}
    assert chosen == {config_for(problems[-1], H200)}
